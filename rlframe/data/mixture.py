"""Several datasets as one, drawn by weight: ``mix:3*a.jsonl + b.parquet``."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from rlframe.errors import ConfigError
from rlframe.interfaces.data import Dataset

__all__ = ["MIX", "Mixture", "Share", "first_rows", "parse_mixture", "shares_of"]

MIX = "mix"
"""Scheme of a mixture."""

_PLUS = re.compile(r"\s+\+\s+")
_PART = re.compile(r"(?:(\d+(?:\.\d+)?)\s*\*\s*)?(?!\d+(?:\.\d+)?\s*\*)(\S.*)", re.DOTALL)


@dataclass(frozen=True)
class Share:
    """One source of a mixture: where its rows begin, how many, its share of the draws."""

    start: int
    rows: int
    weight: float


def parse_mixture(uri: str) -> list[tuple[float, str]]:
    """Weight (default 1) and URI of each source. Raises ConfigError."""
    parts = [part.strip() for part in _PLUS.split(uri.removeprefix(f"{MIX}:"))]
    found: list[tuple[float, str]] = []
    for part in parts:
        match = _PART.fullmatch(part)
        weight = float(match[1] or 1) if match else 0.0
        if match is None or weight <= 0 or match[2].startswith(f"{MIX}:"):
            raise ConfigError(
                f"data '{uri}': '{part}' is no source of a mixture: write "
                f"{MIX}:WEIGHT*URI + WEIGHT*URI with weights above 0"
            )
        found.append((weight, match[2]))
    return found


class Mixture(Dataset):
    """The rows of all sources, one source after the other.

    How often a source is drawn from is its weight; :class:`rlframe.data.PromptStream` gives each
    source epochs of its own. A row without a column ``data_source`` gets the name of its source:
    the file's (or task's) name without folder and suffix.
    """

    def __init__(self, sources: Sequence[tuple[float, str, Dataset]]) -> None:
        self.datasets = [dataset for _, _, dataset in sources]
        self.names = _names([uri for _, uri, _ in sources])
        self._ends = list(accumulate(len(d) for d in self.datasets))
        total = sum(weight for weight, _, _ in sources)
        self.shares = [
            Share(end - len(dataset), len(dataset), weight / total)
            for end, (weight, _, dataset) in zip(self._ends, sources, strict=True)
        ]

    @classmethod
    def open(cls, uri: str) -> Dataset:
        """Never by itself: its sources need the plugins. Raises ConfigError."""
        raise ConfigError(f"data '{uri}': a mixture is opened by rlframe.data.open_dataset")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        source, row = self._locate(index)
        return {"data_source": self.names[source], **self.datasets[source][row]}

    def where(self, index: int) -> str:
        """Where the row stands in its own source."""
        source, row = self._locate(index)
        return self.datasets[source].where(row)

    @property
    def fingerprint(self) -> str:
        """Changes with any source and with the weights."""
        parts = [
            f"{share.weight!r} {dataset.fingerprint}"
            for share, dataset in zip(self.shares, self.datasets, strict=True)
        ]
        return f"mix:{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()}"

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        source = bisect_right(self._ends, index)
        return source, index - self.shares[source].start


def shares_of(dataset: Dataset) -> list[Share]:
    """The sources of a mixture; any other dataset is one source."""
    if isinstance(dataset, Mixture):
        return dataset.shares
    return [Share(0, len(dataset), 1.0)]


def first_rows(dataset: Dataset) -> Iterator[Mapping[str, Any]]:
    """The first row of every source: what rewards and columns are checked on before a run."""
    for share in shares_of(dataset):
        yield dataset[share.start]


def _names(uris: Sequence[str]) -> list[str]:
    """Short names, numbered where two are the same."""
    stems = [PurePath(uri.partition("?")[0].rpartition(":")[2]).stem or uri for uri in uris]
    count, seen = Counter(stems), Counter[str]()
    names = []
    for stem in stems:
        seen[stem] += 1
        names.append(stem if count[stem] == 1 else f"{stem}#{seen[stem]}")
    return names
