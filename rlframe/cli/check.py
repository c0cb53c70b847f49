"""What a config names outside of itself: datasets, models. No model is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from rlframe.algorithm import Algorithm
from rlframe.config import Config
from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import Cluster, Mapper
from rlframe.models.paths import check_models
from rlframe.roles import check_beside, roles_of
from rlframe.weights.connect import check_learnable

__all__ = ["check_inputs"]


def check_inputs(config: Config, host: PluginHost) -> Iterator[str]:
    """Open every dataset, find every model, place every role; yields one line each.

    Raises RlframeError with the key that names what is not there or does not fit.
    """
    from rlframe.data import open_dataset
    from rlframe.inputs import check_rows
    from rlframe.rewards import Scorer

    check_learnable(config)
    algorithm: Algorithm = config.algo.load()(config.algo.config)
    scorer = Scorer.from_config(config.reward)
    for key in ("train", "validate"):
        uri = getattr(config.data, key)
        if uri is None:
            continue
        dataset = open_dataset(uri, host, config.data)
        check_rows(key, dataset, config, algorithm, scorer)
        yield f"data.{key}: {uri}, {len(dataset)} rows"
    for key, where in check_models(config).items():
        yield f"{key}: {where}"
    yield _placement(config, algorithm)


def _placement(config: Config, algorithm: Algorithm) -> str:
    roles = roles_of(config, algorithm)
    names = [role.name for role in roles]
    if not algorithm.offline:
        names.append("rollout")
    cluster: Cluster = config.cluster.load()(config.cluster.config)
    mapper: Mapper = config.mapper.load()(config.mapper.config)
    try:
        placement = mapper.place(names, config, cluster.info())
    finally:
        cluster.close()
    check_beside(roles, placement.pool_of)
    where = ", ".join(f"{role} in {pool}" for role, pool in placement.pool_of.items())
    return f"placement: {where}"
