"""``hf:NAME_OR_PATH?split=..&name=..``: everything that the ``datasets`` library loads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe import ConfigError, DataError
from rlframe.errors import unknown_name
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import absolute, split_options, split_path

if TYPE_CHECKING:
    import datasets as hf

__all__ = ["HuggingFaceDataset"]

_OPTIONS = ("data_dir", "data_files", "name", "revision", "split")
_HUB_S = 10.0
"""Longest wait for the hub's first answer, seconds."""
_BUILDERS = {
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}


class HuggingFaceDataset(Dataset):
    """Rows of one split, from a folder that ``save_to_disk`` wrote, files, or the hub.

    ``split`` is ``train`` where it is not said; ``name`` is the configuration. Files stay on disk,
    memory-mapped. Raises DataError: not there, no such split, hub not reached.
    """

    def __init__(self, uri: str, rows: hf.Dataset) -> None:
        self.uri, self._rows = uri, rows
        self._fingerprint = _content_hash(rows)

    @classmethod
    def open(cls, uri: str) -> HuggingFaceDataset:
        """Open ``hf:NAME_OR_PATH?split=train&name=..&revision=..&data_files=..&data_dir=..``."""
        where, options = _parts(uri)
        split = options.pop("split", "train")
        return cls(uri, _load(uri, where, split, options))

    @classmethod
    def anchor(cls, uri: str) -> str:
        """With an absolute path where the name is one here; a name on the hub stays."""
        return absolute(uri) if Path(_parts(uri)[0]).expanduser().exists() else uri

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The columns of a row as Python values; null is None."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        row: Mapping[str, Any] = self._rows[index]
        return row

    def where(self, index: int) -> str:
        """``URI: row N``, counted from 1."""
        return f"{self.uri}: row {index + 1}"

    @property
    def fingerprint(self) -> str:
        """Hash of the rows themselves, whichever cache they lie in."""
        return self._fingerprint


def _parts(uri: str) -> tuple[str, dict[str, str]]:
    rest = uri.removeprefix("hf:")
    if Path(rest.partition("?")[0]).expanduser().exists():
        path, options = split_path(uri, _OPTIONS)
        return str(path), options
    name, options = split_options(rest)
    for option in options:
        if option not in _OPTIONS:
            raise ConfigError(f"data '{uri}': {unknown_name('option', option, _OPTIONS)}")
    return name, options


def _load(uri: str, where: str, split: str, options: dict[str, str]) -> hf.Dataset:
    import datasets as hf

    hf.disable_progress_bars()
    path = Path(where)
    saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
    try:
        if saved:
            loaded = hf.load_from_disk(where)
        elif path.is_file():
            loaded = hf.load_dataset(_builder(uri, path), data_files=where, split=split)
        else:
            if not path.exists() and "data_files" not in options:
                _reach_hub(uri, where)
            loaded = hf.load_dataset(where, split=split, **options)
    except (ConfigError, DataError):
        raise
    except Exception as error:  # the library and its readers raise anything
        raise DataError(f"data '{uri}': {_reason(error, where)}") from error
    if isinstance(loaded, hf.DatasetDict):
        if split not in loaded:
            raise DataError(f"data '{uri}': {unknown_name('split', split, loaded)}")
        loaded = loaded[split]
    if not isinstance(loaded, hf.Dataset):
        raise DataError(f"data '{uri}' is {type(loaded).__name__}, not one table of rows")
    return loaded


def _builder(uri: str, path: Path) -> str:
    if path.suffix not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        raise ConfigError(f"data '{uri}': a file of kind '{path.suffix}'; known are {known}")
    return _BUILDERS[path.suffix]


def _reach_hub(uri: str, name: str) -> None:
    """Ask the hub once, because the library asks for half a minute. Raises DataError.

    What the hub answers, also that there is no such dataset, is for the library to tell.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        HfApi().dataset_info(name, timeout=_HUB_S)
    except (HfHubHTTPError, OfflineModeIsEnabled, ValueError):
        return
    except Exception as error:  # whatever the HTTP library of the day raises
        raise DataError(f"data '{uri}': {_unreached(error, name)}") from error


def _unreached(error: Exception, where: str) -> str:
    text = " ".join(str(error).split())
    return (
        f"there is no folder '{where}' here and the Hugging Face hub cannot be reached "
        f"({type(error).__name__}: {text[:200]}): set HF_HUB_OFFLINE=1 where it is in the cache, "
        "or save_to_disk it where there is a network and name that folder"
    )


def _reason(error: Exception, where: str) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    offline = isinstance(error, ConnectionError) or "offline" in text.lower()
    if offline or "couldn't reach" in text.lower():
        return _unreached(error, where)
    return f"cannot be loaded: {type(error).__name__}: {text[:400]}"


class _HashingFile:
    """Takes bytes that would be written and keeps their hash."""

    closed = False

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to close."""


def _content_hash(rows: hf.Dataset) -> str:
    """Hash of the rows in their order, as Arrow would write them."""
    import pyarrow as pa

    table = rows.with_format("arrow")
    sink = _HashingFile()
    writer = None
    for batch in table.iter(batch_size=1000):
        plain = batch.replace_schema_metadata(None).combine_chunks()
        if writer is None:
            writer = pa.ipc.new_stream(pa.PythonFile(sink, "w"), plain.schema)
        writer.write_table(plain)
    if writer is not None:
        writer.close()
    return f"sha256:{len(rows)}:{sink.digest.hexdigest()}"
