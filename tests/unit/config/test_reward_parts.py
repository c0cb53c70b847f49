from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.config.plain import config_from_dict
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost

HOST = PluginHost().load()

YAML = """
reward:
  - {name: number, weight: 2, when: {data_source: [gsm8k, math], extra_info.level: 3}}
  - {name: format, label: shape, tags: [a]}
"""


def load(*dotlist: str, files=()):
    return load_config(HOST, Asked(files=files, dotlist=dotlist)).config


def test_parts_are_routed_by_when(tmp_path):
    (tmp_path / "x.yaml").write_text(YAML)
    config = load(files=[tmp_path / "x.yaml"])
    first, second = config.reward.parts
    assert first.when == {"data_source": ["gsm8k", "math"], "extra_info.level": 3}
    assert (first.label, first.weight) == ("number", 2.0)
    assert (second.label, second.when) == ("shape", {})
    assert config_from_dict(config.to_dict(), HOST).reward == config.reward


def test_one_reward_may_have_a_route_on_the_command_line():
    (part,) = load("reward=number", "reward.when.kind=sum").reward.parts
    assert part.when == {"kind": "sum"}
    with pytest.raises(ConfigError, match=r"reward\.when = .* expected a mapping"):
        load("reward.when=3")


def test_a_function_of_a_file_is_called_by_its_name(tmp_path):
    path = tmp_path / "my rewards.py"
    path.write_text("def right(response):\n    return 1\ndef wrong(response):\n    return 0\n")
    (part,) = load(f"reward={path}:right").reward.parts
    assert part.label == "right"
    config = load(f"reward=[{path}:right, {path}:wrong]")
    assert [p.label for p in config.reward.parts] == ["right", "wrong"]
    with pytest.raises(ConfigError, match="'right' twice: give each a label"):
        load(f"reward=[{path}:right, {path}:right]")


def test_columns_are_named_on_the_command_line():
    config = load("data.columns.answer=reward_model.ground_truth")
    assert config.data.columns == {"answer": "reward_model.ground_truth"}
    assert config_from_dict(config.to_dict(), HOST).data == config.data
