"""Every registered strategy passes the kit."""

from __future__ import annotations

import pytest

from rlframe.host.host import current_host
from rlframe.host.packages import missing_packages
from rlframe.testing.strategy_kit import StrategyKit

pytestmark = pytest.mark.dist


def _kit(name: str, missing: list[str]) -> type[StrategyKit]:
    kit = type(f"Test_{name}", (StrategyKit,), {"strategy": name, "__test__": True})
    reason = f"strategy '{name}' needs {', '.join(missing)}: make test-{name}"
    return pytest.mark.skipif(bool(missing), reason=reason)(kit)


KNOWN = current_host().components("strategy")
NAMES = sorted(KNOWN)
globals().update({f"Test_{name}": _kit(name, missing_packages(KNOWN[name])) for name in NAMES})


def test_first_party_strategies_are_registered() -> None:
    assert {"single", "fsdp"} <= set(NAMES)


class TestFsdpOptions(StrategyKit):
    """Weights kept gathered between forward and backward give the same."""

    strategy = "fsdp"
    worlds = (2,)
    options = {"reshard_after_forward": False}  # noqa: RUF012


class TestFsdpTensorParallel(StrategyKit):
    """Two shards of each of two tensor ranks, whose one key-value head is repeated."""

    strategy = "fsdp"
    worlds = (4,)
    options = {"tp": 2}  # noqa: RUF012


class TestFsdpContextParallel(StrategyKit):
    """Two ranks share the tokens of the same rows."""

    strategy = "fsdp"
    worlds = (2,)
    options = {"cp": 2}  # noqa: RUF012
