"""Reading dataset URIs: ``scheme:PATH?option=value&option=value``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from rlframe import ConfigError, DataError
from rlframe.errors import unknown_name

__all__ = [
    "absolute",
    "fingerprint_of",
    "hash_file",
    "json_value",
    "not_utf8",
    "split_options",
    "split_path",
]


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


def json_value(text: str) -> Any:
    """A number, true, false, null or list as JSON writes it; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


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


_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32", "utf-32"),
    (b"\x00\x00\xfe\xff", "UTF-32", "utf-32"),
    (b"\xff\xfe", "UTF-16", "utf-16"),
    (b"\xfe\xff", "UTF-16", "utf-16"),
    (b"\x1f\x8b", "gzip", ""),
    (b"BZh", "bzip2", ""),
    (b"\xfd7zXZ", "xz", ""),
    (b"\x28\xb5\x2f\xfd", "zstd", ""),
    (b"PK\x03\x04", "zip", ""),
    (b"PAR1", "Parquet", ""),
)
"""First bytes, what they mean, and iconv's name where it is an encoding."""


def not_utf8(beginning: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with bytes that are no UTF-8, and the next command.

    ``beginning`` is the beginning of the file, empty where the fault lies later.
    """
    said = f"not UTF-8 (byte {error.start}: {error.reason})"
    for mark, name, encoding in _MARKS:
        if beginning.startswith(mark):
            if encoding:
                return f"{said}, it is {name}: convert it with iconv -f {encoding} -t utf-8"
            if name == "Parquet":
                return f"{said}, it is {name}: write parquet:PATH"
            return f"{said}, it is packed by {name}: unpack it"
    return f"{said}: convert it, for example with iconv -f latin1 -t utf-8"
