"""Who opens a dataset URI: a component of kind ``dataset`` by its scheme, then the hook."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rlframe.asking import raised_in
from rlframe.data.mixture import MIX, Mixture, parse_mixture
from rlframe.data.nested import AliasedDataset
from rlframe.errors import ConfigError, DataError, RlframeError, unknown_name
from rlframe.host.resolve import resolve
from rlframe.interfaces.data import Dataset

if TYPE_CHECKING:
    from rlframe.config import DataConfig
    from rlframe.host.host import PluginHost

__all__ = ["anchor_uri", "open_dataset"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.*)", re.DOTALL)
_CLASS = re.compile(r"([^?]+\.py|[A-Za-z_]\w*(?:\.\w+)+):([A-Za-z_]\w*)(?:\?.*)?")


def open_dataset(uri: str, host: PluginHost, config: DataConfig | None = None) -> Dataset:
    """Open ``scheme:rest``, a bare path (its suffix is the scheme), ``file.py:Class`` or a mixture.

    ``mix:3*URI + URI`` draws from several by weight. ``config.columns`` gives rows further columns.
    Raises ConfigError (PluginError) for an unknown scheme or a missing package, DataError for a
    dataset that is not there, damaged, or empty.
    """
    if uri.startswith(f"{MIX}:"):
        parts = parse_mixture(uri)
        return Mixture([(w, one, _open_one(one, host, config)) for w, one in parts])
    return _open_one(uri, host, config)


def anchor_uri(uri: str, host: PluginHost) -> str:
    """The URI with absolute paths, so that it means the same from every working directory.

    What nobody here can open stays as it is: :func:`open_dataset` says so.
    """
    if uri.startswith(f"{MIX}:"):
        parts = parse_mixture(uri)
        return f"{MIX}:" + " + ".join(f"{w:g}*{anchor_uri(one, host)}" for w, one in parts)
    direct = _CLASS.fullmatch(uri)
    if direct:
        file = direct[1]
        return f"{Path(file).expanduser().resolve()}{uri[len(file) :]}" if ".py:" in uri else uri
    try:
        scheme, whole = _split(uri, host)
        if scheme not in host.components("dataset"):
            return uri
        kind: type[Dataset] = resolve(host, "dataset", scheme).value
    except ConfigError:
        return uri
    return kind.anchor(whole)


def _open_one(uri: str, host: PluginHost, config: DataConfig | None) -> Dataset:
    dataset = _opened(uri, host, config)
    if config is not None and config.columns:
        return AliasedDataset(dataset, config.columns)
    return dataset


def _opened(uri: str, host: PluginHost, config: DataConfig | None) -> Dataset:
    direct = _CLASS.fullmatch(uri)
    if direct:
        target = f"{direct[1]}:{direct[2]}"
        return _open_with(resolve(host, "dataset", target).value, uri)
    scheme, uri = _split(uri, host)
    if scheme in host.components("dataset"):
        return _open_with(resolve(host, "dataset", scheme).value, uri)
    claimed = host.hook.rlframe_open_dataset(uri=uri, config=config)
    if claimed is not None:
        return _checked(claimed, uri)
    host_knows = any(c.name == scheme for p in host.plugins for c in p.components)
    if host_knows:
        host.find("dataset", scheme)
    known = [*host.components("dataset"), MIX]
    raise ConfigError(f"data '{uri}': {unknown_name('scheme', scheme, known)}{_broken(host)}")


def _split(uri: str, host: PluginHost) -> tuple[str, str]:
    """Scheme and full URI; a bare ``x.jsonl`` becomes ``jsonl:x.jsonl``."""
    if not uri:
        raise ConfigError("data.train is empty: name a dataset with --data SCHEME:REST")
    match = _SCHEME.fullmatch(uri)
    if match and (match[1] in host.components("dataset") or not Path(uri).is_file()):
        return match[1], uri
    path = uri if Path(uri).expanduser().exists() else uri.partition("?")[0]
    suffix = PurePath(path).suffix.removeprefix(".")
    if not suffix:
        known = ", ".join(f"{name}:" for name in host.components("dataset")) or "none"
        raise ConfigError(
            f"data '{uri}' names no kind of dataset: write SCHEME:{uri}. Known schemes: {known}"
        )
    return suffix, f"{suffix}:{uri}"


def _open_with(kind: Any, uri: str) -> Dataset:
    try:
        return _checked(kind.open(uri), uri)
    except RlframeError:
        raise
    except Exception as error:  # a dataset of the user's own may raise anything
        what = f"data '{uri}': {getattr(kind, '__name__', kind)}.open"
        raise DataError(raised_in(what, error)) from error


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
