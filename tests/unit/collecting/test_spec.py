"""A collector that is made elsewhere from its spec finds what one made here finds."""

from __future__ import annotations

import cloudpickle
import pytest

from rlframe import Completion, RewardError, Row, Sampling
from rlframe.collecting.offline import OfflineCollector
from rlframe.collecting.spec import CollectorParts, CollectorSpec
from rlframe.config import RewardConfig, RewardPart, Selected
from rlframe.errors import DataError
from rlframe_algorithms.grpo import GRPO
from rlframe_algorithms.sft import SFT
from tests.e2e.small import make_model
from tests.unit.collecting.routed import Routed


class Client(Routed):
    """Answers with the tokens of the prompt, backwards."""

    async def generate(self, request):
        ids = tuple(reversed(request.prompt_ids))
        return Completion(ids, (-1.0,) * len(ids), (3,) * len(ids), "stop")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_model(tmp_path_factory.mktemp("model")))


def function(response, answer):
    if answer == "wrong":
        raise ZeroDivisionError("my reward")
    return {"long": len(response), "is": float(response == answer)}


def spec(model, algorithm, client, here=None):
    by_value = RewardPart("mine", Selected("mine", "", value=function))
    return CollectorSpec(
        algorithm=algorithm,
        environment=Selected("single-turn", "rlframe_plugins.envs.single_turn:SingleTurn", None),
        tail=Selected("wait", "rlframe_plugins.schedulers.tails:Wait", None),
        reward=RewardConfig(parts=(by_value,)),
        tokenizer_path=model,
        prompt_key="prompt",
        max_new_tokens=4,
        seed=0,
        client=client,
        here=here,
    )


def grpo(**options):
    return Selected("grpo", "rlframe_algorithms.grpo:GRPO", GRPO.Config(**options))


def sent(value):
    return cloudpickle.loads(cloudpickle.dumps(value))


def rows(answers=("a", "b")):
    columns = [{"prompt": "abc", "answer": answer} for answer in answers]
    return [Row((5, 6 + n), c, n, Sampling(), f"f:{n}") for n, c in enumerate(columns)]


def test_what_is_made_elsewhere_collects_the_same(model):
    one = spec(model, grpo(samples_per_prompt=2), Client())
    here, there = one(), sent(one)()
    try:
        expected, found = here.collect(rows()), there.collect(rows())
        assert found.value == expected.value
        assert len(found.value.groups) == 2
        assert found.value.groups[0].episodes[0].versions == (3, 3)
        assert found.columns.keys() == expected.columns.keys()
        for name, packed in expected.columns.items():
            assert found.columns[name].values.tolist() == packed.values.tolist(), name
        assert found.columns["prompt_text"].values.tolist() == ["abc"] * 4
        assert [g.rewards for g in there.validate(rows())] == [
            g.rewards for g in here.validate(rows())
        ]
    finally:
        here.close()
        there.close()


def test_the_controllers_own_objects_stay_with_it(model):
    class Loaded:
        take_fault = staticmethod(lambda: "")

    parts = CollectorParts(GRPO(samples_per_prompt=3), object(), Loaded())
    one = spec(model, grpo(), Client(), parts)
    made = one()
    made.close()
    assert made._algorithm is parts.algorithm
    elsewhere = sent(one)
    assert elsewhere.here is None
    made = elsewhere()
    made.close()
    assert made._algorithm.config.samples_per_prompt == GRPO.Config().samples_per_prompt


def test_errors_of_user_code_come_from_there_as_they_are(model):
    there = sent(spec(model, grpo(samples_per_prompt=2), Client()))()
    try:
        with pytest.raises(RewardError, match="'mine' raised ZeroDivisionError: my reward"):
            there.collect(rows(["wrong"]))
        failure = pytest.raises(RewardError, there.collect, rows(["wrong"])).value
        assert str(sent(failure)) == str(failure)
    finally:
        there.close()


def test_offline_methods_are_collected_there_too(model):
    chosen = Selected("sft", "rlframe_algorithms.sft:SFT", SFT.Config())
    there = sent(spec(model, chosen, None))()
    assert isinstance(there, OfflineCollector)
    columns = {"prompt": "abc", "response": "bca"}
    made = there.collect([Row((5,), columns, 4, Sampling())])
    assert made.value.groups[0].group_id == 4
    assert made.value.groups[0].oldest_version == -1
    assert made.columns["response_text"].values.tolist() == ["bca"]
    with pytest.raises(DataError, match="not text"):
        there.collect([Row((5,), {"prompt": "abc", "response": object()}, 4, Sampling())])
