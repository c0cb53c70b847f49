"""Who opens a dataset URI: a component of kind ``dataset`` by its scheme, then the hook."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from rlframe.errors import ConfigError, DataError, unknown_name
from rlframe.host.resolve import resolve
from rlframe.interfaces.data import Dataset

if TYPE_CHECKING:
    from rlframe.config import DataConfig
    from rlframe.host.host import PluginHost

__all__ = ["open_dataset"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.*)", re.DOTALL)
_CLASS = re.compile(r"([^?]+\.py|[A-Za-z_]\w*(?:\.\w+)+):([A-Za-z_]\w*)(?:\?.*)?")


def open_dataset(uri: str, host: PluginHost, config: DataConfig | None = None) -> Dataset:
    """Open ``scheme:rest``, a bare path (its suffix is the scheme), or ``file.py:Class``.

    Raises ConfigError (PluginError) for an unknown scheme or a missing package, DataError for a
    dataset that is not there, damaged, or empty.
    """
    direct = _CLASS.fullmatch(uri)
    if direct:
        target = f"{direct[1]}:{direct[2]}"
        return _checked(resolve(host, "dataset", target).value.open(uri), uri)
    scheme, uri = _split(uri, host)
    if scheme in host.components("dataset"):
        return _checked(resolve(host, "dataset", scheme).value.open(uri), uri)
    claimed = host.hook.rlframe_open_dataset(uri=uri, config=config)
    if claimed is not None:
        return _checked(claimed, uri)
    host_knows = any(c.name == scheme for p in host.plugins for c in p.components)
    if host_knows:
        host.find("dataset", scheme)
    known = host.components("dataset")
    raise ConfigError(f"data '{uri}': {unknown_name('scheme', scheme, known)}{_broken(host)}")


def _split(uri: str, host: PluginHost) -> tuple[str, str]:
    """Scheme and full URI; a bare ``x.jsonl`` becomes ``jsonl:x.jsonl``."""
    if not uri:
        raise ConfigError("data.train is empty: name a dataset with --data SCHEME:REST")
    match = _SCHEME.fullmatch(uri)
    if match:
        return match[1], uri
    suffix = PurePath(uri).suffix.removeprefix(".")
    if not suffix:
        known = ", ".join(f"{name}:" for name in host.components("dataset")) or "none"
        raise ConfigError(
            f"data '{uri}' names no kind of dataset: write SCHEME:{uri}. Known schemes: {known}"
        )
    return suffix, f"{suffix}:{uri}"


def _checked(dataset: object, uri: str) -> Dataset:
    if not isinstance(dataset, Dataset):
        name = type(dataset).__name__
        raise ConfigError(
            f"data '{uri}' was opened as {name}: derive it from rlframe.interfaces.data.Dataset"
        )
    if len(dataset) < 1:
        raise DataError(f"data '{uri}' has no rows")
    return dataset


def _broken(host: PluginHost) -> str:
    broken = [f"plugin '{p.plugin}': {p.error}" for p in host.plugins if p.error]
    return f" Not loaded: {'; '.join(broken)}." if broken else ""
