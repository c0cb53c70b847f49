"""RewardKit over every registered reward, and over the forms of a plain function."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from rlframe.host.host import PluginHost
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import resolve
from rlframe.interfaces.data import Reward
from rlframe.rewards import FunctionReward
from rlframe.testing.reward_kit import RewardKit
from rlframe.testing.tokenizers import char_tokenizer
from tests.unit.plugins.rewards.local_server import LocalServer, completion

HOST = PluginHost().load()

CASES = {
    "exact": {
        "columns": {"prompt": "1+1=", "answer": 2},
        "cases": (("2", 1.0), (" 2\n", 1.0), ("3", 0.0), ("22", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "number": {
        "columns": {"prompt": "1+1=", "answer": "1 + 1 = 2 #### 2"},
        "cases": (("so 2.0.", 1.0), ("2, no, 3", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "math": {
        "columns": {"prompt": "1/2=", "answer": "0.5"},
        "cases": ((r"\boxed{\frac{1}{2}}", 1.0), ("2", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "regex": {
        "options": {"pattern": "#### (.*)", "column": "answer"},
        "cases": (("#### 2", 1.0), ("2", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "format": {
        "cases": (("<think>1</think> <answer>2</answer>", 1.0), ("2", 0.0), ("", 0.0)),
    },
    "length": {
        "options": {"max_tokens": 4, "buffer": 2},
        "cases": (("22", 0.0), ("222", -0.5), ("2222", -1.0), ("22222", -1.0)),
    },
    "code": {
        "columns": {"prompt": "double it", "tests": [{"input": "2", "output": "4"}]},
        "cases": (
            ("```python\nprint(2 * int(input()))\n```", 1.0),
            ("```python\nprint(5)\n```", 0.0),
            ("4", 0.0),
            ("", 0.0),
        ),
        "needs": ("tests",),
    },
    "http": {
        "options": {"url": "{url}", "columns": ("answer",), "batch": 2},
        "cases": (("2", 1.0), ("3", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "judge": {
        "options": {"base_url": "{url}", "model": "m", "template": "{response}|{answer}"},
        "cases": (("2", 1.0), ("3", 0.0), ("", 0.0)),
        "needs": ("answer",),
    },
    "model": {
        "options": {"path": "{classifier}"},
        "columns": {"prompt": "ab"},
        "cases": (("c", 0.0), ("de", 0.0), ("", 0.0)),
    },
    "reasoning-gym": {
        "columns": {
            "prompt": "1 + 1 =",
            "answer": "2",
            "metadata": {"source_dataset": "chain_sum"},
        },
        "cases": (("2", 1.0), ("<answer>2</answer>", 1.0), ("3", 0.0), ("", 0.0)),
        "needs": ("answer", "metadata"),
    },
}
"""What each registered reward is tried on."""


def answer(body, number):
    """A service that compares, and a judge that does."""
    if "samples" in body:
        return 200, {}, [float(s["response"] == s["answer"]) for s in body["samples"]]
    response, _, right = body["messages"][0]["content"].partition("|")
    return completion(f"Score: {10 if response == right else 0}")


@pytest.fixture(scope="module")
def server():
    with LocalServer(answer) as server:
        yield server


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A sequence classifier whose score is 0 for everything; test_model_reward has real ones."""
    path = tmp_path_factory.mktemp("classifier")
    config = BertConfig(
        vocab_size=37,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    model = BertForSequenceClassification(config)
    torch.nn.init.zeros_(model.classifier.weight)
    torch.nn.init.zeros_(model.classifier.bias)
    model.save_pretrained(path)
    char_tokenizer(path)
    return path


def test_every_registered_reward_is_tried():
    assert set(CASES) == set(HOST.components("reward"))


class TestRegistered(RewardKit):
    @pytest.fixture(autouse=True, params=sorted(CASES))
    def _choose(self, request, server, classifier):
        hint = missing_hint(HOST.find("reward", request.param))
        if hint:
            pytest.skip(hint)
        self.kind = resolve(HOST, "reward", request.param).value
        for name, value in {"options": {}, **CASES[request.param]}.items():
            setattr(self, name, value)
        given = {"{url}": server.url, "{classifier}": str(classifier)}
        self.options = {n: given.get(v, v) for n, v in self.options.items()}

    def make(self) -> Reward:
        return self.kind(self.kind.Config(**self.options))


def one(response, answer):
    return float(response == answer)


async def one_later(response, answer):
    return response == answer


def group(responses, answer):
    return [float(r == a) for r, a in zip(responses, answer, strict=True)]


def parts(**columns):
    right = columns["response"] == columns["answer"]
    return {"right": right, "short": None if right else 0.0}


class TestFunctions(RewardKit):
    cases = (("2", 1.0), ("3", 0.0))

    @pytest.fixture(autouse=True, params=[one, one_later, group, parts])
    def _choose(self, request):
        self.function = request.param
        self.needs = () if self.function is parts else ("answer",)

    def make(self) -> Reward:
        return FunctionReward(self.function)


class TestAbstaining(RewardKit):
    cases = (("2", None),)

    def make(self) -> Reward:
        return FunctionReward(lambda response: None, "none")


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (lambda response: 0.5, "test_cases_get_their_outcome"),
        (lambda response, memory=[]: memory.append(1) or len(memory), "test_the_same_twice"),
        (lambda responses: list(range(len(responses))), "test_order_does_not_matter"),
        (lambda response: float(response), "test_one_value_an_episode"),
    ],
)
def test_the_kit_notices_a_broken_reward(broken, check):
    class Kit(RewardKit):
        cases = (("2", 1.0), ("3", 0.0))

        def make(self) -> Reward:
            return FunctionReward(broken, "broken")

    with pytest.raises((AssertionError, ValueError)):
        getattr(Kit(), check)()
