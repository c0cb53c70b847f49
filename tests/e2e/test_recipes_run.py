"""Every recipe runs at reduced size: its method, reward and scheduler, on a random model of 10,000
parameters in one process. What needs packages or processes of its own is run elsewhere.
"""  # noqa: D205

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlframe.cli.main import main
from tests.e2e.small import make_model

RECIPES = Path(__file__).parents[2] / "templates/rlframe_templates/recipes"
ELSEWHERE = {
    "tiny_calculator": ("test_agents.py", '"tiny_calculator"'),
    "tiny_guess": ("test_agents.py", '"tiny_guess"'),
    "megatron": ("test_megatron_runs.py", '"megatron.yaml"'),
}
"""What runs there, and the words that say so: agents over the shipped model, four ranks on Ray."""
NAMES = sorted({path.stem for path in RECIPES.glob("*.yaml")} - set(ELSEWHERE))
REWARD = "def letters(response):\n    return sum(c in 'abcdefg' for c in response) / 6\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "good.py").write_text(REWARD)
    return make_model(folder / "model")


def reduced(recipe: dict, model: Path) -> dict:
    """The same in a step or two of two prompts on one CPU, with sizes, paths, engines replaced."""
    algo = recipe["algo"] if isinstance(recipe["algo"], dict) else {"name": recipe["algo"]}
    small = {
        "minibatch_prompts": 1,
        "samples_per_prompt": min(4, algo.get("samples_per_prompt", 4)),
    }
    if algo["name"] in ("sft", "rm", "dpo"):
        small = {}
    source = "builtin:arithmetic?size=40"
    data = {**recipe["data"], "train": source, "validate": None, "prompts_per_step": 2}
    if "second" in data:
        data["second"] = source
    roles = {
        name: {key: value for key, value in role.items() if key in ("optim", "strategy")}
        for name, role in recipe.get("roles", {}).items()
    }
    overlaps = recipe.get("scheduler", {}).get("name", "sync") != "sync"
    keep = {"strategy", "scheduler", "optim", "env"} & set(recipe)
    return {
        **{name: recipe[name] for name in keep},
        "algo": {**algo, **small, **({"critic_warmup": 1} if "critic_warmup" in algo else {})},
        "model": {"path": str(model)},
        "data": data,
        "roles": roles,
        "rollout": {"name": "torch", "max_new_tokens": 4},
        "reward": recipe.get("reward") if "second" in data else f"{model.parent}/good.py:letters",
        "cluster": {"name": "inline", "threads": 1},
        "checkpoint": {"name": "hybrid", "copy": overlaps},
        "steps": 2 if overlaps or "critic_warmup" in algo else 1,
        "logger": ["jsonl"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs(name, model, tmp_path):
    if name == "deepspeed":
        pytest.importorskip("deepspeed", reason="recipe 'deepspeed': make test-deepspeed")
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    small, file = reduced(recipe, model), tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(small))
    assert main(["fit", "--config", str(file), f"run.dir={tmp_path}", "run.name=run"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", small["steps"])


def test_those_that_run_elsewhere_are_there():
    for name, (file, words) in ELSEWHERE.items():
        assert (RECIPES / f"{name}.yaml").is_file()
        assert words in (Path(__file__).parent / file).read_text()
