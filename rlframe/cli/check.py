"""What a config names outside of itself: datasets, models. No model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlframe.algorithm import Algorithm
from rlframe.config import Config
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import Cluster, Mapper
from rlframe.paths import resolve_model

__all__ = ["check_inputs", "find_model"]


def check_inputs(config: Config, host: PluginHost) -> Iterator[str]:
    """Open every dataset, find every model, place every role; yields one line each.

    Raises RlframeError with the key that names what is not there or does not fit.
    """
    from rlframe.data import check_columns, first_rows, open_dataset
    from rlframe.rewards import Scorer

    algorithm: Algorithm = config.algo.load()(config.algo.config)
    for key in ("train", "validate"):
        uri = getattr(config.data, key)
        if uri is None:
            continue
        dataset = open_dataset(uri, host, config.data)
        for row in first_rows(dataset):
            check_columns(row, config.data, f"data.{key} '{uri}'")
            if not algorithm.offline:
                Scorer.from_config(config.reward).check(row)
        yield f"data.{key}: {uri}, {len(dataset)} rows"
    paths = {"model.path": config.model.path}
    paths |= {f"roles.{name}.model.path": role.model.path for name, role in config.roles.items()}
    for key, path in paths.items():
        yield f"{key}: {find_model(key, path)}"
    yield _placement(config, algorithm)


def _placement(config: Config, algorithm: Algorithm) -> str:
    names = [role.name for role in algorithm.roles()]
    if not algorithm.offline:
        names.append("rollout")
    cluster: Cluster = config.cluster.load()(config.cluster.config)
    mapper: Mapper = config.mapper.load()(config.mapper.config)
    try:
        placement = mapper.place(names, config, cluster.info())
    finally:
        cluster.close()
    where = ", ".join(f"{role} in {pool}" for role, pool in placement.pool_of.items())
    return f"placement: {where}"


def find_model(key: str, path: str) -> str:
    """Where a model lies, in words. Raises ConfigError where it is no model's folder."""
    folder = Path(resolve_model(path))
    if (folder / "config.json").is_file():
        return str(folder)
    if folder.is_dir():
        raise ConfigError(f"{key}: {folder} has no config.json: it is no Hugging Face model folder")
    if path.startswith(("/", ".", "~", "pkg:")) or path.count("/") > 1:
        raise ConfigError(f"{key}: there is no folder {folder}")
    return f"{path} (no folder here: a name on the Hugging Face hub)"
