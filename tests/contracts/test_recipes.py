"""Every recipe loads, is short, says what it is for; placements are the mapper's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rlframe.cli.main import main
from rlframe.config.load import Asked, load_config
from rlframe.errors import PluginError
from rlframe.host.host import current_host

RECIPES = sorted((Path(__file__).parents[2] / "templates/rlframe_templates/recipes").glob("*.yaml"))
PLANNED = {
    path.stem: found[1]
    for path in RECIPES
    if (found := re.search(r"^# \$ rlframe (map .*)$", path.read_text(), re.MULTILINE))
}


def test_there_are_recipes_for_what_people_come_for():
    names = {path.stem for path in RECIPES}
    assert {"grpo", "ppo", "dapo", "rm", "dpo", "async", "deepspeed", "megatron"} <= names
    assert {"tiny_sft", "tiny_safe_rlhf", "tiny_calculator", "tiny_guess"} <= names
    assert {"vllm_colocated", "vllm_separate"} <= names
    assert set(PLANNED) == {"grpo_7b_8", "dapo_32b_64", "ppo_70b_128"}


def load(path: Path, folder: Path):
    """The config; where vLLM is not there, with another engine in its place (make test-vllm)."""
    try:
        return load_config(current_host(), Asked(files=[path])).config
    except PluginError as error:
        if "needs the package 'vllm'" not in str(error):
            raise
    data = yaml.safe_load(path.read_text())
    data["rollout"] = {"name": "torch", "pool": data["rollout"].get("pool", "train")}
    other = folder / path.name
    other.write_text(yaml.safe_dump(data))
    return load_config(current_host(), Asked(files=[other])).config


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_it_loads_and_is_short(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) <= 40
    try:
        config = load(path, tmp_path)
    except PluginError as error:
        if "needs the package" not in str(error):
            raise
        pytest.skip(f"{error}; its make target has it")
    assert config.algo.name in text


def differing(planned, written, where=""):
    """Keys of a plan that a recipe has otherwise; a recipe may say more."""
    if not isinstance(planned, dict):
        return [] if planned == written else [f"{where}: {planned!r}, not {written!r}"]
    rest = written if isinstance(written, dict) else {}
    return [
        line
        for key, value in planned.items()
        for line in differing(value, rest.get(key), f"{where}.{key}")
    ]


@pytest.mark.parametrize("name", PLANNED)
def test_a_placement_is_what_the_mapper_finds(name, capsys):
    """The command stands in the recipe; its output goes there when the mapper finds better."""
    assert main(PLANNED[name].split()) == 0
    planned = yaml.safe_load(capsys.readouterr().out)
    written = yaml.safe_load(next(p for p in RECIPES if p.stem == name).read_text())
    assert {"pools", "roles", "rollout", "checkpoint"} <= set(planned)
    assert differing(planned, written) == []
