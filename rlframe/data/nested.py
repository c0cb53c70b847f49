"""Columns by dotted path, and columns under another name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlframe.asking import raised_in
from rlframe.errors import ConfigError, DataError, RlframeError, unknown_name
from rlframe.interfaces.data import Dataset

__all__ = ["AliasedDataset", "nested_paths", "nested_value", "row_of"]


def nested_value(columns: Mapping[str, Any], path: str) -> Any:
    """The value at ``reward_model.ground_truth``; a column of that whole name comes first.

    A number chooses an item of a list: ``prompt.0.content``. Raises KeyError with the path.
    """
    if path in columns:
        return columns[path]
    value: Any = columns
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(path)
    return value


def nested_paths(columns: Mapping[str, Any]) -> list[str]:
    """Every column, and the dotted paths below those that hold mappings; for messages."""
    found: list[str] = []
    for name, value in columns.items():
        found.append(str(name))
        if isinstance(value, Mapping):
            found += [f"{name}.{path}" for path in nested_paths(value)]
    return found


def row_of(dataset: Dataset, index: int) -> dict[str, Any]:
    """The columns of a row. Raises DataError, also for what a dataset's own code raises."""
    try:
        return dict(dataset[index])
    except RlframeError:
        raise
    except Exception as error:  # a dataset of the user's own may raise anything
        kind = type(dataset).__name__
        raise DataError(raised_in(f"{kind}[{index}]", error)) from error


class AliasedDataset(Dataset):
    """A dataset whose rows have further columns: ``aliases`` maps a name to a dotted path.

    A column that already has the name is hidden by it. Raises DataError for a row without the path.
    """

    def __init__(self, dataset: Dataset, aliases: Mapping[str, str]) -> None:
        self.dataset, self.aliases = dataset, dict(aliases)

    @classmethod
    def open(cls, uri: str) -> Dataset:
        """Never by itself: ``data.columns`` makes one. Raises ConfigError."""
        raise ConfigError(f"data '{uri}': an aliased dataset is made by data.columns")

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        columns = self.dataset[index]
        return {**columns, **{n: self._find(columns, n, index) for n in self.aliases}}

    def where(self, index: int) -> str:
        """Where the row stands."""
        return self.dataset.where(index)

    @property
    def fingerprint(self) -> str:
        """That of the dataset itself: names change no row."""
        return self.dataset.fingerprint

    def _find(self, columns: Mapping[str, Any], name: str, index: int) -> Any:
        path = self.aliases[name]
        try:
            return nested_value(columns, path)
        except KeyError:
            text = unknown_name("column", path, nested_paths(columns))
            raise DataError(f"{self.where(index)}: data.columns.{name}: {text}") from None
