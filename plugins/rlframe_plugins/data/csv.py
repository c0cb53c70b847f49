"""``csv:PATH`` and ``tsv:PATH``: a table as text, its first line the names of the columns."""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlframe import ConfigError, DataError
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import absolute, not_utf8, split_path

__all__ = ["CsvDataset"]

_DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}


class CsvDataset(Dataset):
    """Rows of a CSV file (RFC 4180), UTF-8 with or without a byte-order mark, kept in memory.

    Every value is text; a field may hold line breaks inside of quotes. Opening checks every row, so
    that a damaged one ends the command and not the run. Raises DataError with ``file:line``.
    """

    def __init__(self, path: str | Path, delimiter: str = ",") -> None:
        self.path = Path(path).expanduser()
        self.delimiter = delimiter
        self._names: tuple[str, ...] = ()
        self._rows: list[tuple[str, ...]] = []
        self._lines: list[int] = []
        self._fingerprint = self._read()

    @classmethod
    def open(cls, uri: str) -> CsvDataset:
        """Open ``csv:PATH?delimiter=semicolon`` (comma, tab, semicolon, pipe or one character)."""
        path, options = split_path(uri, ("delimiter",))
        given = options.get("delimiter", "tab" if uri.startswith("tsv:") else "comma")
        delimiter = _DELIMITERS.get(given, given)
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise ConfigError(
                f"data '{uri}': delimiter must be {', '.join(_DELIMITERS)} or one character"
            )
        return cls(path, delimiter)

    @classmethod
    def anchor(cls, uri: str) -> str:
        """With an absolute path."""
        return absolute(uri)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The columns of a row, all text."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return dict(zip(self._names, self._rows[index], strict=True))

    def where(self, index: int) -> str:
        """``file:line`` of the row's first line."""
        return f"{self.path}:{self._lines[index]}"

    @property
    def fingerprint(self) -> str:
        """Hash of the file's content and the delimiter."""
        return self._fingerprint

    # --- inside -------------------------------------------------------------------------------

    def _read(self) -> str:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read data file {self.path}: {error.strerror}") from error
        with _any_field_size():
            for line, row in self._records(self._decoded(content)):
                self._take(line, row)
        if not self._rows:
            raise DataError(f"{self.path} has no rows")
        digest = hashlib.sha256(content + self.delimiter.encode())
        return f"sha256:{len(content)}:{digest.hexdigest()}"

    def _decoded(self, content: bytes) -> str:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            what = not_utf8(content[:8] if line == 1 else b"", error)
            raise DataError(f"{self.path}:{line}: {what}") from error

    def _records(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """Each record with the line on which it begins; blank lines at the end are none."""
        reader = csv.reader(_newlines(text), delimiter=self.delimiter, strict=True)
        line, blank = 1, 0
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                cut = " (a quote is not closed)" if "end of data" in str(error) else ""
                raise DataError(f"{self.path}:{line}: not CSV: {error}{cut}") from error
            if row is None:
                return
            if not row:
                blank = blank or line
            elif blank:
                raise DataError(f"{self.path}:{blank}: the line is empty: remove it")
            else:
                yield line, row
            line = reader.line_num + 1

    def _take(self, line: int, row: list[str]) -> None:
        if not self._names:
            self._check_names(line, row)
            self._names = tuple(row)
            return
        if len(row) != len(self._names):
            raise DataError(
                f"{self.path}:{line}: {len(row)} fields, but the first line names "
                f"{len(self._names)} columns ({', '.join(self._names)})"
            )
        self._rows.append(tuple(row))
        self._lines.append(line)

    def _check_names(self, line: int, names: list[str]) -> None:
        for name in names:
            if not name.strip():
                raise DataError(f"{self.path}:{line}: a column has no name")
            if names.count(name) > 1:
                raise DataError(f"{self.path}:{line}: column '{name}' is there twice")


def _newlines(text: str) -> Iterator[str]:
    """The lines of a text with their ends; only line feeds end one, as editors count them."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


@contextmanager
def _any_field_size() -> Iterator[None]:
    """Prompts may be longer than the csv module's 128 KiB."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
