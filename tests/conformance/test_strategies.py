"""Every registered strategy passes the kit."""

from __future__ import annotations

import pytest

from rlframe.host.host import current_host
from rlframe.testing.strategy_kit import StrategyKit

pytestmark = pytest.mark.dist


def _kit(name: str) -> type[StrategyKit]:
    return type(f"Test_{name}", (StrategyKit,), {"strategy": name, "__test__": True})


NAMES = sorted(current_host().components("strategy"))
globals().update({f"Test_{name}": _kit(name) for name in NAMES})


def test_first_party_strategies_are_registered() -> None:
    assert {"single", "fsdp"} <= set(NAMES)


class TestFsdpOptions(StrategyKit):
    """Weights kept gathered between forward and backward give the same."""

    strategy = "fsdp"
    worlds = (2,)
    options = {"reshard_after_forward": False}  # noqa: RUF012
