"""Reading dataset URIs: ``scheme:PATH?option=value&option=value``."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from urllib.parse import parse_qsl

from rlframe import ConfigError, DataError
from rlframe.errors import unknown_name

__all__ = ["absolute", "fingerprint_of", "hash_file", "split_options", "split_path"]


def split_options(rest: str) -> tuple[str, dict[str, str]]:
    """What stands before the last ``?``, and the options after it. Raises ConfigError.

    ``%20`` and ``+`` in an option stand for a blank.
    """
    head, mark, query = rest.rpartition("?")
    if not mark:
        return rest, {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise ConfigError(f"'?{query}' are no options: write ?key=value&key=value") from error
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigError(f"'?{query}' names an option twice")
    return head, options


def split_path(uri: str, known: Collection[str] = ()) -> tuple[Path, dict[str, str]]:
    """The path and the options of a URI about files; a path that is there may hold a ``?``.

    Raises ConfigError for an option that is none of ``known``.
    """
    scheme, _, rest = uri.partition(":")
    whole = Path(rest).expanduser()
    if "?" not in rest or whole.exists():
        return whole, {}
    path, options = split_options(rest)
    for name in options:
        if not known:
            raise ConfigError(f"data '{uri}': {scheme} takes no options after '?'")
        if name not in known:
            raise ConfigError(f"data '{uri}': {unknown_name('option', name, known)}")
    return Path(path).expanduser(), options


def absolute(uri: str) -> str:
    """The URI with its path made absolute; options stay as they are."""
    scheme, _, rest = uri.partition(":")
    if "?" in rest and not Path(rest).expanduser().exists():
        path, _, query = rest.rpartition("?")
        return f"{scheme}:{Path(path).expanduser().absolute()}?{query}"
    return f"{scheme}:{Path(rest).expanduser().absolute()}"


def fingerprint_of(parts: Iterable[str]) -> str:
    """One hash of several texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode())
    return f"sha256:{digest.hexdigest()}"


def hash_file(path: Path) -> str:
    """Hash of a file's content. Raises DataError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read data file {path}: {error.strerror}") from error
