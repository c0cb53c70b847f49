"""Cross-field checks with the components that are really there."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host


def test_greedy_sampling_teaches_nothing():
    with pytest.raises(ConfigError, match="temperature=0 draws the same response 8 times"):
        load_config(current_host(), Asked(dotlist=["rollout.temperature=0"]))


def test_greedy_sampling_does_not_matter_offline():
    asked = Asked(flags={"algo": "sft"}, dotlist=["rollout.temperature=0"])
    assert load_config(current_host(), asked).config.algo.name == "sft"
