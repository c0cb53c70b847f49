"""Strategy megatron passes the kit in every form; ``make test-megatron`` runs it."""

from __future__ import annotations

import pytest

pytest.importorskip("megatron.core", reason="needs megatron-core: make test-megatron")

from rlframe.testing.strategy_kit import StrategyKit
from rlframe_strategies.megatron import shim
from tests.unit.strategies.megatron.models import write_model

pytestmark = pytest.mark.dist

shim.install()  # once, before ranks are forked


class MegatronKit(StrategyKit):
    """The kit on a model whose heads two tensor-parallel ranks can share."""

    __test__ = False
    strategy = "megatron"
    family = "qwen2"
    padding = None
    """A token among the others, whose embedding is not trained as transformers has it."""

    @pytest.fixture
    def path(self, tmp_path):
        return write_model(tmp_path / "model", self.family, pad_token_id=self.padding)


class TestReplicas(MegatronKit):
    """Data parallelism with a distributed optimiser."""

    __test__ = True
    worlds = (1, 2)


class TestPlainOptimiser(MegatronKit):
    """Each replica has the whole optimiser state; attention alone is recomputed."""

    __test__ = True
    worlds = (2,)
    family = "qwen3"
    options = {"distributed_optimizer": False, "recompute": "selective"}  # noqa: RUF012


class TestSequenceParallel(MegatronKit):
    """Two tensor-parallel ranks that share tokens out; norms of queries and keys."""

    __test__ = True
    padding = 30
    worlds = (2,)
    family = "qwen3"
    options = {"tp": 2, "sequence_parallel": True}  # noqa: RUF012


class TestStages(MegatronKit):
    """Two stages, four layers, an embedding and a head of their own."""

    __test__ = True
    padding = 5
    worlds = (2,)
    family = "llama"
    options = {"pp": 2}  # noqa: RUF012


class TestThreeDimensions(MegatronKit):
    """Tensor x pipeline, alone and with two replicas; tied embeddings on both ends."""

    __test__ = True
    worlds = (4, 8)
    timeout_s = 240.0
    options = {"tp": 2, "pp": 2}  # noqa: RUF012


class TestInterleaved(MegatronKit):
    """Two runs of layers a stage, everything on."""

    __test__ = True
    worlds = (4,)
    timeout_s = 240.0
    options = {"tp": 2, "pp": 2, "vpp": 2, "sequence_parallel": True}  # noqa: RUF012
