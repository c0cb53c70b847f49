"""Figures over ranks that have no rows, or other figures than their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe import Term
from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.calling.fan_out import distribute
from rlframe.calling.protocol import DP_METRIC, Mesh, protocol_of
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec, ModelEngine
from rlframe.interfaces.strategy import ModelSpec
from rlframe.testing.dist import run_ranks
from rlframe.testing.models import tiny_model
from rlframe_algorithms.grpo import GRPO
from rlframe_strategies.engine import CausalLMEngine
from rlframe_strategies.fsdp import FSDPStrategy

pytestmark = pytest.mark.dist


class Uneven(GRPO):
    """One more figure where a micro-batch has a row of an odd group."""

    def metrics(self, role, out, batch):
        found = super().metrics(role, out, batch)
        odd = batch["group_ids"] % 2 == 1
        if odd.any():
            found["odd"] = Term(odd.float(), mask=None, reduction="mean")
        return found


def batch_of(rows):
    one = np.ones((rows, 3), np.float32)
    return Batch.from_columns(
        {
            "prompt_ids": [[1, 2, 3]] * rows,
            "response_ids": [[4, 5, 6]] * rows,
            "response_mask": [[True] * 3] * rows,
            "group_ids": np.arange(rows),
            "episode_ids": np.arange(rows),
            "train": np.ones(rows, bool),
            "old_logprobs": -one * 3,
            "advantages": one * np.arange(1, rows + 1, dtype=np.float32)[:, None],
        }
    )


def engine_for(rank, path, algorithm):
    config = GRPO.Config(kl_coef=0.0)
    optim = OptimConfig(name="sgd", lr=0.1)
    engine = CausalLMEngine(rank)
    engine.setup(
        EngineSpec(
            role=algorithm(config).roles()[0],
            model=ModelSpec(path, ModelConfig(path=path), "policy", optim, 10),
            strategy=Selected("fsdp", "", FSDPStrategy.Config(), value=FSDPStrategy),
            algorithm=Selected("a", "", config, value=algorithm),
            tokens_per_microbatch=6,
            max_response_tokens=3,
        )
    )
    return engine


def infer(rank, path, rows):
    """This rank's share of the policy's outputs: its batch rows, and the values."""
    engine = engine_for(rank, path, GRPO)
    batch = batch_of(rows).select(["prompt_ids", "response_ids", "response_mask", "train"])
    share = distribute(protocol_of(ModelEngine.infer), Mesh(rank.world), (batch,))[rank.rank]
    columns = engine.infer(*share.args)
    engine.close()
    return share.rows, columns["old_logprobs"]


def update(rank, path, algorithm, rows):
    engine = engine_for(rank, path, algorithm)
    batch = batch_of(rows)
    plan = plan_batch(batch, budget=6, ranks=engine._strategy.mesh.dp)
    share = distribute(DP_METRIC, Mesh(rank.world), (batch, plan))[rank.rank]
    figures = engine.evaluate(*share.args) | engine.update(*share.args).metrics
    engine.close()
    return figures


@pytest.mark.parametrize("algorithm", [GRPO, Uneven])
@pytest.mark.parametrize(("world", "rows"), [(2, 1), (2, 3), (4, 2)])
def test_figures_are_those_of_one_rank(tmp_path, algorithm, world, rows):
    path = str(tiny_model(tmp_path / "model"))
    (alone,) = run_ranks(update, 1, path, algorithm, rows)
    assert ("odd" in alone) is (algorithm is Uneven and rows > 1)
    for seen in run_ranks(update, world, path, algorithm, rows):
        assert seen == pytest.approx(alone, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("world", "rows"), [(2, 5), (4, 2)])
def test_outputs_are_those_of_one_rank_where_some_have_no_rows(tmp_path, world, rows):
    path = str(tiny_model(tmp_path / "model"))
    ((everything, alone),) = run_ranks(infer, 1, path, rows)
    assert everything.tolist() == list(range(rows))
    found = run_ranks(infer, world, path, rows)
    assert sorted(row for mine, _ in found for row in mine.tolist()) == list(range(rows))
    assert any(not len(mine) for mine, _ in found) is (world > rows)
    for mine, packed in found:
        wanted = alone.take(mine)
        assert packed.lengths.tolist() == wanted.lengths.tolist()
        assert packed.values == pytest.approx(wanted.values, abs=1e-5)
