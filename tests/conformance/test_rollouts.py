"""Every registered rollout engine passes the kit."""

from __future__ import annotations

import pytest

from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.testing.rollout_kit import RolloutKit

ELSEWHERE = {"vllm", "vllm-server", "sglang", "sglang-engine", "openai"}
"""Tested by files of their own, which say what they need."""
NAMES = sorted(set(current_host().components("rollout")) - ELSEWHERE)


def _kit(name: str) -> type[RolloutKit]:
    return type(f"Test_{name}", (RolloutKit,), {"rollout": name, "__test__": True})


globals().update({f"Test_{name}": _kit(name) for name in NAMES})


def test_first_party_rollouts_are_registered():
    assert {"torch", "hf", "replay"} <= set(NAMES)


class TestTorchLlama(RolloutKit):
    """Untied, without biases, in few rows and little cache."""

    rollout = "torch"
    kind = "llama"
    options = {"max_batch": 3, "max_kv_tokens": 200}  # noqa: RUF012


class TestTorchAlone(RolloutKit):
    rollout = "torch"
    options = {"batch_invariant": True}  # noqa: RUF012


@pytest.mark.parametrize("name", NAMES)
def test_names_what_it_can(name):
    known = {"seed", "stop-strings", "min-p", "batch-invariant", "pause", "in-flight", "sleep"}
    found = resolve(current_host(), "rollout", name).value
    assert found.capabilities <= known | {"replay"}
