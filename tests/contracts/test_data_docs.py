"""What the pages on data and rewards show is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rlframe.config.load import Asked, load_config
from rlframe.data.mixture import parse_mixture
from rlframe.host.host import PluginHost

DOCS = Path(__file__).parents[2] / "docs"
HOST = PluginHost().load()


@pytest.mark.parametrize("name", HOST.components("dataset"))
def test_every_dataset_is_in_the_table(name):
    assert f"`{name}:" in (DOCS / "data.md").read_text()


@pytest.mark.parametrize("name", HOST.components("reward"))
def test_every_reward_is_in_the_table(name):
    assert f"| `{name}` |" in (DOCS / "rewards.md").read_text()


def block(page: str, start: str) -> dict:
    """The indented YAML block that begins with a line."""
    text = (DOCS / page).read_text()
    found = re.search(rf"^    {re.escape(start)}.*?(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return yaml.safe_load(found[0])


def test_the_mixture_is_one():
    weights = [weight for weight, _ in parse_mixture(block("data.md", "data:")["data"]["train"])]
    assert weights == [3, 1, 1]


def test_the_list_of_rewards_loads(tmp_path):
    parts = block("rewards.md", "reward:")["reward"]
    (tmp_path / "my_rewards.py").write_text("def polite(response):\n    return 1\n")
    for part in parts:
        part["name"] = (
            part["name"].replace("my_", f"{tmp_path}/my_").replace("reasoning-gym", "exact")
        )
    config = load_config(HOST, Asked(values={"reward": parts})).config
    assert [part.label for part in config.reward.parts] == ["number", "exact", "tone"]
