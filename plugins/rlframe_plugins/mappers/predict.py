"""Seconds that the model predicts for a run that was done, to lay beside its timings."""

from __future__ import annotations

from pathlib import Path

from rlframe.config.load import Asked, load_config
from rlframe.host.host import current_host
from rlframe.run_dir import config_file
from rlframe_plugins.mappers.auto import AutoMapper
from rlframe_plugins.mappers.dataflow import ROLLOUT

__all__ = ["predict_run"]


def predict_run(run: Path, devices: str | None) -> dict[str, float]:
    """Seconds by stage of a run's config on the cluster that it names, under the best plan."""
    host = current_host()
    config = load_config(host, Asked([str(config_file(str(run)))], [], {})).config
    algorithm = config.algo.load()(config.algo.config)
    roles = [role.name for role in algorithm.roles()]
    if not algorithm.offline:
        roles.append(ROLLOUT)
    cluster = config.cluster.load()(config.cluster.config)
    options = AutoMapper.Config(devices=devices or "")
    planned = AutoMapper(options).plan(roles, config, cluster.info())
    return dict(planned.plans[0].stages)
