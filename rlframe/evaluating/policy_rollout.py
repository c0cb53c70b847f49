"""A rollout engine outside of training: with a model's weights, a run's, or those of a server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rlframe.algorithm import Algorithm
from rlframe.build import connect_checkpoint, start_groups
from rlframe.config import Config
from rlframe.errors import ConfigError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.place import Place
from rlframe.requests import Sampling

__all__ = ["policy_rollout"]


def policy_rollout(
    config: Config,
    algorithm: Algorithm,
    path: str,
    sampling: Sampling,
    place: Place,
    policy: Path | None,
    ends: ExitStack,
) -> RolloutEngine:
    """An engine that serves the model at ``path``, or the weights in the folder ``policy``.

    What has to be closed goes on ``ends``. An engine that takes no weights answers with what its
    server has. Raises ConfigError where that is asked for a run's weights, ModelError,
    SnapshotError.
    """
    if not config.rollout.load().takes_weights:
        if policy is not None:
            raise ConfigError(
                f"rollout '{config.rollout.name}' evaluates what its server has, not the weights "
                "of a run: name the model whose tokenizer it uses instead of the run"
            )
        spec = RolloutSpec(path=str(path), model=config.model, seed=config.seed)
        engine: RolloutEngine = config.rollout.load()(config.rollout.config, spec)
        ends.callback(engine.close)
        return engine
    groups, transfer = start_groups(config, algorithm, path, sampling, place)
    ends.callback(transfer.close)
    if policy is not None:
        groups["policy"].call("load", policy).result()
    checkpoint = connect_checkpoint(config, groups)
    ends.callback(checkpoint.close)
    checkpoint.publish(0)
    return groups["rollout"].client()
