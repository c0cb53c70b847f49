"""Seconds that the model predicts for a run that was done, to lay beside its timings."""

from __future__ import annotations

import json
from pathlib import Path

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host
from rlframe.recording.run_dir import config_file
from rlframe.roles import roles_of
from rlframe_plugins.mappers.auto import AutoMapper
from rlframe_plugins.mappers.dataflow import ROLLOUT

__all__ = ["predict_run"]


def predict_run(run: Path, devices: str | None) -> dict[str, float]:
    """Seconds by stage of a run's config on the cluster that it names, under the best plan."""
    host = current_host()
    config = load_config(host, Asked([str(config_file(str(run)))], [], {})).config
    algorithm = config.algo.load()(config.algo.config)
    roles = [role.name for role in roles_of(config, algorithm)]
    if not algorithm.offline:
        roles.append(ROLLOUT)
    cluster = config.cluster.load()(config.cluster.config)
    prompt, response = _lengths(run)
    options = AutoMapper.Config(
        devices=devices or "", prompt_tokens=prompt, response_tokens=str(response)
    )
    planned = AutoMapper(options).plan(roles, config, cluster.info())
    return dict(planned.plans[0].stages)


def _lengths(run: Path) -> tuple[int, int]:
    """Mean tokens of prompts and responses that the run logged, at least 1 each."""
    text = (run / "metrics.jsonl").read_text(encoding="utf-8")
    steps = [json.loads(line) for line in text.splitlines()]
    means = []
    for key in ("prompt_length/mean", "response_length/mean"):
        values = [step[key] for step in steps if key in step]
        if not values:
            raise ConfigError(f"{run}/metrics.jsonl holds no {key}")
        means.append(max(round(sum(values) / len(values)), 1))
    return means[0], means[1]
