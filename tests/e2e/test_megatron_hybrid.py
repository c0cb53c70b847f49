"""The HybridEngine over Megatron: training 2-2-1 (p-t-d), generation 1-2-2-1, on four workers."""

from __future__ import annotations

import pytest

from tests.e2e.hybrid_run import check_learns

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")
pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600), pytest.mark.usefixtures("one_ray")]


def test_training_2_2_1_with_generation_1_2_2_1_learns(tmp_path):
    """Two pipeline stages of fused shards become two replicas that each hold the whole depth."""
    check_learns(tmp_path, {"name": "megatron", "tp": 2, "pp": 2}, 4)
