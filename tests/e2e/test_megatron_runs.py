"""Runs of strategy megatron on Ray: as one process on replayed rollouts, learning, resuming."""

from __future__ import annotations

import pytest
import yaml

import rlframe
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from tests.e2e.replays import check_figures, check_weights, logged, record, replay
from tests.e2e.small import learning, make_questions, validated
from tests.e2e.test_recipes_run import RECIPES, REWARD, reduced

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")
pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("one_ray"),
]

GRID = {"name": "megatron", "tp": 2, "pp": 2}
FORMS = {
    "tp-pp": (GRID, 4),
    "sequence-dp": ({"name": "megatron", "tp": 2, "sequence_parallel": True}, 4),
}


def make_model(folder):
    """Heads that two tensor-parallel ranks can share; a vocabulary that they cannot."""
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return char_tokenizer(tiny_model(folder, **sizes))


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inline")
    model, questions = make_model(folder / "m"), make_questions(folder / "q.jsonl")
    return record(folder, model, questions), model, questions


@pytest.mark.parametrize("form", FORMS)
def test_an_update_equals_that_of_one_process(form, inline, tmp_path):
    """On replayed rollouts, from equal weights: loss, norms, every metric, every weight."""
    run = inline[0]
    strategy, ranks = FORMS[form]
    spread = replay(tmp_path, *inline, strategy=strategy, pools={"train": {"devices": ranks}})
    assert "critic/vf_loss" in logged(run)[0]
    check_figures(run, spread)
    check_weights(run, spread, tmp_path)


def test_it_learns_and_resumes(tmp_path):
    """Training 2-2-1 (p-t-d), generation 1-2-2-1, checked; the second half from a snapshot."""
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    placed = {"strategy": GRID, "pools": {"train": {"devices": 4}}}
    given = learning(tmp_path, model, questions, **placed)
    given["rollout"] |= {"tensor_parallel": 2}
    given["checkpoint"] = {"name": "hybrid", "verify": 1}
    given["run"] |= {"validate_every": 3, "save_every": 3}
    first = rlframe.fit(**{**given, "steps": 3})
    second = rlframe.fit(**{**given, "resume": str(first.run_dir)})
    assert second.summary["status"] == "finished"
    rewards = validated(second.run_dir)
    assert rewards[-1] > rewards[0] + 0.3, rewards


def test_the_recipe_runs(tmp_path):
    """Its four ranks; model and batch are small."""
    recipe = yaml.safe_load((RECIPES / "megatron.yaml").read_text())
    (tmp_path / "good.py").write_text(REWARD)
    given = reduced(recipe, make_model(tmp_path / "m"))
    given |= {"cluster": "ray", "pools": recipe["pools"]}
    done = rlframe.fit(**given, run={"dir": str(tmp_path), "name": "run"})
    assert (done.summary["status"], done.summary["steps"]) == ("finished", given["steps"])
