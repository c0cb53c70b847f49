"""Figures over ranks that have no rows, or other figures than their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from rlframe import Term
from rlframe.batch import Batch
from rlframe.config import ModelConfig, OptimConfig, Selected
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.strategy import ModelSpec
from rlframe.plan import plan_update
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


def update(rank, path, algorithm, rows):
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
    batch = batch_of(rows)
    lengths = batch.lengths("prompt_ids") + batch.lengths("response_ids")
    groups = np.asarray(batch["group_ids"])
    plan = plan_update(
        lengths, groups, epochs=1, minibatch_prompts=0, budget=6, ranks=engine._strategy.mesh.dp
    )
    rows, mine = plan.parts(engine._strategy.mesh.dp)[rank.rank]
    batch = batch.take(rows)
    figures = engine.evaluate(batch, mine) | engine.update(batch, mine).metrics
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
