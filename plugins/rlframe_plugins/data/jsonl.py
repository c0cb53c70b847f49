"""``jsonl:PATH``: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlframe import DataError
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import absolute, not_utf8, split_path

__all__ = ["JsonlDataset"]

_BOM = b"\xef\xbb\xbf"


class JsonlDataset(Dataset):
    """Rows of a JSON Lines file; only their byte offsets stay in memory.

    Opening reads the file once and checks every line, so that a damaged one ends the command and
    not the run: not UTF-8, empty, cut off, not an object. Raises DataError with ``file:line``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._offsets = array("Q", [0])
        self._fd: int | None = None
        self._fingerprint = self._index()

    @classmethod
    def open(cls, uri: str) -> JsonlDataset:
        """Open ``jsonl:PATH``."""
        return cls(split_path(uri)[0])

    @classmethod
    def anchor(cls, uri: str) -> str:
        """With an absolute path."""
        return absolute(uri)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The object on line ``index + 1``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        if self._fd is None:
            self._fd = os.open(self.path, os.O_RDONLY)
        start, end = self._offsets[index], self._offsets[index + 1]
        return self._parse(os.pread(self._fd, end - start, start), index + 1)

    def where(self, index: int) -> str:
        """``file:line``."""
        return f"{self.path}:{index + 1}"

    @property
    def fingerprint(self) -> str:
        """Hash of the file's size and content."""
        return self._fingerprint

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": None}

    def __del__(self) -> None:
        if getattr(self, "_fd", None) is not None:
            os.close(self._fd)  # type: ignore[arg-type]

    # --- inside -------------------------------------------------------------------------------

    def _index(self) -> str:
        digest = hashlib.sha256()
        blank = 0
        try:
            with self.path.open("rb") as file:
                for line in file:
                    digest.update(line)
                    number = len(self) + 1
                    if not line.strip():
                        blank = blank or number
                        continue
                    if blank:
                        raise DataError(f"{self.path}:{blank}: the line is empty: remove it")
                    self._parse(line, number)
                    self._offsets.append(self._offsets[-1] + len(line))
                size = file.tell()
        except OSError as error:
            raise DataError(f"cannot read data file {self.path}: {error.strerror}") from error
        if not len(self):
            raise DataError(f"{self.path} has no rows")
        return f"sha256:{size}:{digest.hexdigest()}"

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        where = f"{self.path}:{number}"
        if number == 1:
            line = line.removeprefix(_BOM)
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            what = not_utf8(line if number == 1 else b"", error)
            raise DataError(f"{where}: {what}") from error
        except json.JSONDecodeError as error:
            what = f"not JSON, column {error.colno}: {error.msg}"
            raise DataError(f"{where}: {what}{_why_not(line, number, error.msg)}") from error
        except RecursionError as error:
            raise DataError(f"{where}: nested too deeply") from error
        except ValueError as error:
            raise DataError(f"{where}: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{where}: the line is not an object in braces: {str(value)[:60]!r}")
        return value


def _why_not(line: bytes, number: int, message: str) -> str:
    """What a line that is no JSON seems to be, and what to do."""
    if b"\0" in line[:4]:
        return " (it looks like UTF-16): convert it, for example with iconv -f utf-16le -t utf-8"
    if number == 1 and line.strip() in (b"[", b"{"):
        return (
            ": one object a line is wanted, this seems to be one JSON document over several lines: "
            "jq -c '.[]' (for one list of rows) writes it so"
        )
    if message == "Extra data":
        more = " (its lines end with CR alone)" if b"\r{" in line else ""
        return f": one object a line is wanted, here are several{more}"
    return "" if line.endswith(b"\n") else " (the last line seems to be cut off)"
