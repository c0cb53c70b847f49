from __future__ import annotations

import pickle

import pytest

from rlframe.errors import ConfigError, DataError
from rlframe_plugins.data.parquet import ParquetDataset

pa = pytest.importorskip("pyarrow", reason="needs the extra 'parquet'")
pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra 'parquet'")

VERL = [
    {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": f"{i}+1="}],
        "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
        "extra_info": {"index": i, "split": "train"},
    }
    for i in range(4)
]


@pytest.fixture
def write(tmp_path):
    def write_rows(rows, name="x.parquet", **options):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path, **options)
        return path

    return write_rows


def test_nested_rows_come_back_as_they_are(write):
    path = write(VERL, row_group_size=2)
    dataset = ParquetDataset.open(f"parquet:{path}")
    assert [dataset[i] for i in (3, 0, 2, 1)] == [VERL[i] for i in (3, 0, 2, 1)]
    assert dataset.where(2) == f"{path}: row 3"
    assert pickle.loads(pickle.dumps(dataset))[1] == VERL[1]
    for index in (-1, 4):
        with pytest.raises(IndexError):
            dataset[index]


def test_folders_and_patterns_follow_the_names(write, tmp_path):
    write(VERL[2:], "many/b.parquet")
    write(VERL[:2], "many/a.parquet")
    for place in ("many", "many/*.parquet"):
        dataset = ParquetDataset.open(f"parquet:{tmp_path}/{place}")
        assert [dataset[i] for i in range(4)] == VERL
        assert dataset.where(3) == f"{tmp_path}/many/b.parquet: row 2"


def test_some_columns_are_read_alone(write):
    path = write(VERL)
    dataset = ParquetDataset.open(f"parquet:{path}?columns=prompt,data_source")
    assert set(dataset[0]) == {"prompt", "data_source"}
    assert dataset.fingerprint != ParquetDataset(path).fingerprint
    with pytest.raises(DataError, match="unknown column 'promt'. Did you mean 'prompt'"):
        ParquetDataset.open(f"parquet:{path}?columns=promt")
    with pytest.raises(ConfigError, match="unknown option 'column'"):
        ParquetDataset.open(f"parquet:{path}?column=prompt")


def test_what_is_damaged_or_not_there_is_one_line(write, tmp_path):
    path = write(VERL)
    whole = path.read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2], b"", b"PAR1", b"text"):
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            ParquetDataset.open(f"parquet:{path}")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    for place, message in (
        ("no.parquet", "cannot read"),
        ("empty", "no Parquet file"),
        ("n*", "no"),
    ):
        with pytest.raises(DataError, match=message):
            ParquetDataset.open(f"parquet:{tmp_path}/{place}")
    with pytest.raises(DataError, match="has no rows"):
        ParquetDataset(write([], "none.parquet"))


def test_files_with_other_columns_are_refused(write, tmp_path):
    write([{"a": 1}], "many/a.parquet")
    write([{"a": 1, "b": 2}], "many/b.parquet")
    with pytest.raises(DataError, match="differ in columns: b"):
        ParquetDataset(tmp_path / "many")


def test_the_fingerprint_is_that_of_the_content(write):
    first = ParquetDataset(write(VERL)).fingerprint
    assert ParquetDataset(write(VERL, "copy.parquet")).fingerprint == first
    assert ParquetDataset(write(VERL[:3])).fingerprint != first
