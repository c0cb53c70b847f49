"""``builtin:arithmetic``: sums of two numbers, made without files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from rlframe import DataError
from rlframe.errors import unknown_name
from rlframe.interfaces.data import Dataset

__all__ = ["ArithmeticOptions", "BuiltinDataset"]

_NAMES = ("arithmetic",)
_LARGEST = 99
_TEST_SHARE = 10
"""One question in so many is held out."""


@dataclass(frozen=True)
class ArithmeticOptions:
    """What stands after the ``?`` of ``builtin:arithmetic?split=test&size=100``."""

    split: str = "train"
    """train or test: a question belongs to one of them by its hash, whatever the seed."""
    size: int = 0
    """Rows, at least 0; 0 takes each question of the split once, more than that repeats them."""
    seed: int = 0
    """Order of the questions and choice of the slips, at least 0."""
    slips: float = 0.0
    """Share of rows whose ``response`` forgets to carry, 0 to 1; ``answer`` is always right."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        if self.split not in ("train", "test"):
            raise ValueError(unknown_name("split", self.split, ("train", "test")))
        for name in ("size", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.slips <= 1:
            raise ValueError(f"slips must be 0 to 1, not {self.slips}")


class BuiltinDataset(Dataset):
    """Sums of two numbers from 0 to 99: ``prompt`` "17+25=", ``answer`` "42", ``response``.

    ``response`` is a demonstration for ``sft``. With ``slips`` it comes from a careless pupil, who
    in that share of the rows adds each column for itself and forgets to carry ("32"): a model that
    imitates him can add but often does not, which is what a reward then changes.

    ``chosen`` and ``rejected`` are a right and a wrong answer, for methods on pairs;
    ``chosen_safe`` is true and ``rejected_safe`` false, for cost models.
    """

    def __init__(self, options: ArithmeticOptions | None = None) -> None:
        self.options = options or ArithmeticOptions()
        self._questions = _split()[self.options.split]
        self._orders: dict[int, list[int]] = {}
        content = repr((self.options, self._questions)).encode()
        self._fingerprint = f"builtin:{hashlib.sha256(content).hexdigest()}"

    @classmethod
    def open(cls, uri: str) -> BuiltinDataset:
        """Open ``builtin:arithmetic?split=..&size=..&seed=..&slips=..``. Raises DataError."""
        name, _, query = uri.removeprefix("builtin:").partition("?")
        if name not in _NAMES:
            raise DataError(f"data '{uri}': {unknown_name('builtin dataset', name, _NAMES)}")
        try:
            return cls(ArithmeticOptions(**_parse(query)))
        except ValueError as error:
            raise DataError(f"data '{uri}': {error}") from error

    def __len__(self) -> int:
        return self.options.size or len(self._questions)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The columns ``prompt``, ``answer``, ``response`` of a row, and those of a pair."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        turn, place = divmod(index, len(self._questions))
        a, b = self._questions[self._order(turn)[place]]
        slip = _share(f"slip {self.options.seed} {index}") < self.options.slips
        return {
            "prompt": _ask(a, b),
            "answer": str(a + b),
            "response": str(_without_carry(a, b) if slip else a + b),
            "chosen": str(a + b),
            "rejected": str(_wrong(a, b)),
            "chosen_safe": True,
            "rejected_safe": False,
        }

    @property
    def fingerprint(self) -> str:
        """Hash of the options and of the questions that they select from."""
        return self._fingerprint

    def _order(self, turn: int) -> list[int]:
        """The questions of one pass: each once, in an order of its own."""
        if turn not in self._orders:
            order = list(range(len(self._questions)))
            random.Random(f"{self.options.seed} {turn}").shuffle(order)
            self._orders[turn] = order
        return self._orders[turn]


def _parse(query: str) -> dict[str, Any]:
    """Options by name with the types of their fields. Raises ValueError."""
    known = [field.name for field in fields(ArithmeticOptions)]
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
        if name not in known:
            raise ValueError(unknown_name("option", name, known))
        if name in found:
            raise ValueError(f"option '{name}' is given twice")
        found[name] = _value(name, text)
    return found


def _value(name: str, text: str) -> str | int | float:
    if name == "split":
        return text
    try:
        return float(text) if name == "slips" else int(text)
    except ValueError:
        kind = "a number" if name == "slips" else "a whole number"
        raise ValueError(f"option '{name}' is '{text}', not {kind}") from None


@lru_cache(maxsize=1)
def _split() -> dict[str, tuple[tuple[int, int], ...]]:
    """Every question, held out or not by the hash of its text."""
    parts: dict[str, list[tuple[int, int]]] = {"train": [], "test": []}
    for a in range(_LARGEST + 1):
        for b in range(_LARGEST + 1):
            held_out = _share(_ask(a, b)) < 1 / _TEST_SHARE
            parts["test" if held_out else "train"].append((a, b))
    return {name: tuple(part) for name, part in parts.items()}


def _ask(a: int, b: int) -> str:
    return f"{a}+{b}="


def _share(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big") / 2**48


def _without_carry(a: int, b: int) -> int:
    return (a // 10 + b // 10) % 10 * 10 + (a % 10 + b % 10) % 10


def _wrong(a: int, b: int) -> int:
    """The sum without carry where that is wrong, else one that is off by one."""
    slip = _without_carry(a, b)
    return slip if slip != a + b else a + b + 1
