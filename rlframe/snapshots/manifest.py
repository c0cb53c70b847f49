"""What a snapshot should hold: size and hash of every file, and a hash of the list itself."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlframe import __version__
from rlframe.errors import SnapshotError
from rlframe.snapshots.durable import files_below

__all__ = [
    "FORMAT",
    "MANIFEST",
    "Manifest",
    "library_versions",
    "read_manifest",
    "verify",
    "write_manifest",
]

FORMAT = 2
"""Version of the files' meaning; another one is refused."""
MANIFEST = "manifest.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Manifest:
    """``files``: path below the snapshot to [bytes, sha256]; ``world``: ranks that wrote it."""

    format: int
    step: int
    world: int
    versions: Mapping[str, str]
    files: Mapping[str, list[Any]]


def write_manifest(directory: Path, step: int, world: int) -> Manifest:
    """List every file that is there now; returns what was written."""
    files = {
        path.relative_to(directory).as_posix(): [path.stat().st_size, _sha256(path)]
        for path in files_below(directory)
    }
    manifest = Manifest(FORMAT, step, world, library_versions(), files)
    body = asdict(manifest)
    text = json.dumps({**body, "sha256": _body_hash(body)}, indent=1, sort_keys=True)
    (directory / MANIFEST).write_text(text, encoding="utf-8")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """The list of a snapshot. Raises SnapshotError: missing, damaged, of another version."""
    path = directory / MANIFEST
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read ({error.strerror}): no snapshot") from error
    except ValueError as error:
        raise SnapshotError(f"{path} is damaged: {error}") from error
    if not isinstance(body, dict):
        raise SnapshotError(f"{path} is damaged: it holds no object")
    if body.get("format") != FORMAT and isinstance(body.get("format"), int):
        raise SnapshotError(
            f"{directory} has snapshot format {body['format']}, this rlframe {__version__} reads "
            f"format {FORMAT}: resume it with rlframe {_writer(body)}"
        )
    stated = body.pop("sha256", None)
    if stated != _body_hash(body):
        raise SnapshotError(f"{path} is damaged: its hash does not fit its content")
    return Manifest(**body)


def verify(directory: Path) -> Manifest:
    """Check size and hash of every file. Raises SnapshotError naming the first bad one."""
    manifest = read_manifest(directory)
    for name, (size, digest) in manifest.files.items():
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts:
            raise SnapshotError(f"{directory / MANIFEST} names a file outside: {name!r}")
        path = directory / name
        try:
            found = path.stat().st_size
            if found != size:
                raise SnapshotError(f"{path} is damaged: {found} bytes instead of {size}")
            if _sha256(path) != digest:
                raise SnapshotError(f"{path} is damaged: its content has changed")
        except OSError as error:
            raise SnapshotError(f"{path} cannot be read: {error.strerror}") from error
    return manifest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _body_hash(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _writer(body: Mapping[str, Any]) -> str:
    versions = body.get("versions")
    return str(versions.get("rlframe", "?")) if isinstance(versions, dict) else "?"


def library_versions() -> dict[str, str]:
    """What a snapshot depends on, by name."""
    import torch

    return {"rlframe": __version__, "python": platform.python_version(), "torch": torch.__version__}
