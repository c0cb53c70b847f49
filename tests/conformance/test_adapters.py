"""Every registered strategy that trains adapters passes the kit."""

from __future__ import annotations

import pytest

from rlframe.host.host import current_host
from rlframe.host.packages import missing_packages
from rlframe.host.resolve import resolve
from rlframe.testing.adapter_kit import AdapterKit

pytestmark = pytest.mark.dist

KNOWN = current_host().components("strategy")
THERE = [name for name in sorted(KNOWN) if not missing_packages(KNOWN[name])]
NAMES = [n for n in THERE if "lora" in resolve(current_host(), "strategy", n).value.capabilities]
globals().update(
    {
        f"Test_{name}": type(f"Test_{name}", (AdapterKit,), {"strategy": name, "__test__": True})
        for name in NAMES
    }
)


def test_first_party_strategies_claim_adapters() -> None:
    assert {"single", "ddp", "fsdp"} <= set(NAMES)
