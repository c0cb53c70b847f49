"""Where a model lies: a folder, a name on the Hugging Face hub, or a folder inside a package."""

from __future__ import annotations

from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from rlframe.errors import ModelError

__all__ = ["resolve_model"]

_SCHEME = "pkg:"


def resolve_model(path: str) -> str:
    """``pkg:PACKAGE/FOLDER`` to a folder on disk; every other path or hub name as it is.

    Raises ``ModelError`` where the package is not installed or has no such folder.
    """
    if not path.startswith(_SCHEME):
        return str(Path(path).expanduser()) if path.startswith("~") else path
    package, _, folder = path.removeprefix(_SCHEME).partition("/")
    if not package.isidentifier() or find_spec(package) is None:
        raise ModelError(f"model '{path}': there is no package '{package}'")
    with as_file(files(package).joinpath(folder)) as found:
        if not found.is_dir():
            raise ModelError(f"model '{path}': package '{package}' has no folder '{folder}'")
        return str(found)
