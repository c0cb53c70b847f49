"""``parquet:PATH``: a Parquet file, a folder of them, or a pattern with ``*``."""

from __future__ import annotations

from collections.abc import Mapping
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe import DataError
from rlframe.errors import unknown_name
from rlframe.interfaces.data import Dataset
from rlframe_plugins.data.uri import absolute, fingerprint_of, hash_file, split_path

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetDataset"]


class ParquetDataset(Dataset):
    """Rows of Parquet files, kept in memory as Arrow; nested columns become dicts and lists.

    Files of a folder or pattern follow each other in the order of their names and must have the
    same columns. ``columns`` restricts what is read. Raises DataError with ``file: row N``.
    """

    def __init__(self, path: str | Path, columns: tuple[str, ...] = ()) -> None:
        self.path, self.columns = Path(path).expanduser(), columns
        self._files = self._found()
        self._tables = [self._read(file) for file in self._files]
        self._check_same()
        if not len(self):
            raise DataError(f"{self.path} has no rows")
        hashes = [hash_file(file) for file in self._files]
        self._fingerprint = fingerprint_of([*hashes, *columns])

    @classmethod
    def open(cls, uri: str) -> ParquetDataset:
        """Open ``parquet:PATH?columns=prompt,answer``."""
        path, options = split_path(uri, ("columns",))
        names = tuple(name for name in options.get("columns", "").split(",") if name)
        return cls(path, names)

    @classmethod
    def anchor(cls, uri: str) -> str:
        """With an absolute path."""
        return absolute(uri)

    def __len__(self) -> int:
        return sum(table.num_rows for table in self._tables)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """The columns of a row as Python values; null is None."""
        table, row = self._locate(index)
        found: dict[str, Any] = self._tables[table].slice(row, 1).to_pylist()[0]
        return found

    def where(self, index: int) -> str:
        """``file: row N``, counted from 1."""
        table, row = self._locate(index)
        return f"{self._files[table]}: row {row + 1}"

    @property
    def fingerprint(self) -> str:
        """Hash of the files' content and the chosen columns."""
        return self._fingerprint

    # --- inside -------------------------------------------------------------------------------

    def _locate(self, index: int) -> tuple[int, int]:
        if index >= 0:
            for number, table in enumerate(self._tables):
                if index < table.num_rows:
                    return number, index
                index -= table.num_rows
        raise IndexError(index)

    def _found(self) -> list[Path]:
        if self.path.is_dir():
            files = sorted(self.path.rglob("*.parquet"))
        elif self.path.exists() or not any(mark in str(self.path) for mark in "*?["):
            files = [self.path]
        else:
            files = sorted(Path(name) for name in glob(str(self.path), recursive=True))
        if not files:
            raise DataError(f"no Parquet file in {self.path}")
        return files

    def _read(self, file: Path) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(file)
            names = parquet.schema_arrow.names
            for name in self.columns:
                if name not in names:
                    raise DataError(f"{file}: {unknown_name('column', name, names)}")
            table = parquet.read(list(self.columns) or None)
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"cannot read data file {file}: {_one_line(reason)}") from error
        except pa.ArrowException as error:
            raise DataError(f"{file} is no whole Parquet file: {_one_line(str(error))}") from error
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{file}: column '{name}' is there twice")
        return table

    def _check_same(self) -> None:
        first = set(self._tables[0].column_names)
        for file, table in zip(self._files, self._tables, strict=True):
            differ = sorted(first ^ set(table.column_names))
            if differ:
                raise DataError(
                    f"{file} and {self._files[0]} differ in columns: {', '.join(differ)}"
                )


def _one_line(text: str) -> str:
    return " ".join(text.split())
