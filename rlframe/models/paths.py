"""Where a model lies: a folder, a GGUF file, a name on the hub, or a folder inside a package."""

from __future__ import annotations

import difflib
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.errors import ModelError, nearest
from rlframe.models.gguf import check_gguf, dequantised, gguf_file

if TYPE_CHECKING:
    from rlframe.config import Config

__all__ = ["check_models", "find_model", "load_tokenizer", "resolve_model"]

_SCHEME, _CONFIG = "pkg:", "config.json"
_HUB_S = 10.0
"""Longest wait for the hub's answer, seconds."""


def resolve_model(path: str) -> str:
    """``pkg:PACKAGE/FOLDER`` to a folder on disk; every other path or hub name as it is.

    A GGUF file, or a folder that holds one, becomes the folder of its dequantised model. Raises
    ``ModelError`` where the package is not installed or has no such folder, and for a GGUF file
    that cannot be read.
    """
    place = _locate(path)
    file = gguf_file(place)
    return place if file is None else str(dequantised(file))


def _locate(path: str) -> str:
    if not path.startswith(_SCHEME):
        return str(Path(path).expanduser()) if path.startswith("~") else path
    package, _, folder = path.removeprefix(_SCHEME).partition("/")
    if not package.isidentifier() or find_spec(package) is None:
        raise ModelError(f"model '{path}': there is no package '{package}'")
    with as_file(files(package).joinpath(folder)) as found:
        if not found.is_dir():
            raise ModelError(f"model '{path}': package '{package}' has no folder '{folder}'")
        return str(found)


def check_models(config: Config) -> dict[str, str]:
    """Where every model of a config lies, in words, by its key. Raises ModelError."""
    paths = {"model.path": config.model.path}
    paths |= {f"roles.{name}.model.path": role.model.path for name, role in config.roles.items()}
    found: dict[str, str] = {}
    for key, path in paths.items():
        if path not in found:
            found[path] = find_model(key, path)
    return {key: found[path] for key, path in paths.items()}


def find_model(key: str, path: str) -> str:
    """Where a model lies, in words; nothing of it is loaded, and the hub is asked once at most.

    Raises ModelError where there is no such folder, it is no model's, or the hub does not have it
    or cannot be reached.
    """
    folder = Path(_locate(path))
    gguf = gguf_file(folder)
    if gguf is not None:
        check_gguf(gguf)
        return f"{gguf} (GGUF, dequantised at the start)"
    if (folder / _CONFIG).is_file():
        return str(folder)
    if folder.is_dir():
        raise ModelError(f"{key}: {folder} has no config.json: it is no Hugging Face model folder")
    if folder.exists():
        raise ModelError(f"{key}: '{path}' is a file: name the folder of a Hugging Face model")
    if path.startswith(("/", ".", "~")) or path.count("/") > 1 or _is_typo(folder):
        raise ModelError(f"{key}: there is no folder '{path}'.{_hint(folder)}")
    return _on_hub(key, path, folder)


def _siblings(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.parent.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _is_typo(folder: Path) -> bool:
    """Whether a word without a slash is nearly the name of a model's folder beside it."""
    if folder.parent != Path():
        return False
    close = difflib.get_close_matches(folder.name, _siblings(folder), n=1, cutoff=0.75)
    return bool(close) and (folder.with_name(close[0]) / _CONFIG).is_file()


def _hint(folder: Path) -> str:
    close = nearest(folder.name, _siblings(folder))
    return f" Did you mean '{folder.with_name(close)}'?" if close else ""


def _on_hub(key: str, name: str, folder: Path) -> str:
    """Look in the cache, then ask the hub once: the model library would ask for a minute."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    neither = f"{key}: '{name}' is neither a folder nor"
    hint = _hint(folder)
    try:
        if isinstance(try_to_load_from_cache(name, _CONFIG), str):
            return f"{name} (in the Hugging Face cache)"
        HfApi().model_info(name, timeout=_HUB_S)
    except HFValidationError as error:
        raise ModelError(f"{neither} a name on the Hugging Face hub.{hint}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{neither} a model on the Hugging Face hub, or it is a private one.{hint}"
        ) from error
    except OfflineModeIsEnabled as error:
        raise ModelError(
            f"{neither} in the Hugging Face cache, and HF_HUB_OFFLINE is set.{hint}"
        ) from error
    except HfHubHTTPError:
        pass  # the hub is there and busy, or wants a login: the library says so
    except Exception as error:  # whatever the HTTP library of the day raises
        text = " ".join(str(error).split())
        raise ModelError(
            f"{neither} reachable on the Hugging Face hub ({type(error).__name__}: {text[:200]})."
            f"{hint} Without a network, name a folder with the model"
        ) from error
    return f"{name} (no folder here: a name on the Hugging Face hub)"


def load_tokenizer(path: str) -> Any:
    """The tokenizer in a model's folder. Raises ModelError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ModelError(f"no tokenizer in '{path}': {error}") from error
