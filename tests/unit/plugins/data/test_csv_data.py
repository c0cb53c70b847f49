from __future__ import annotations

import csv
import io
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.errors import ConfigError, DataError
from rlframe_plugins.data.csv import CsvDataset

CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=8)


@pytest.fixture
def write(tmp_path):
    def write_bytes(content: bytes, name: str = "x.csv"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_bytes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([",", "\t", ";"]),
    st.booleans(),
)
def test_rows_come_back(tmp_path_factory, rows, newline, delimiter, bom):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline, quoting=csv.QUOTE_ALL)
    writer.writerows([("prompt", "answer"), *rows])
    path = tmp_path_factory.mktemp("d") / "x.csv"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.getvalue().encode())
    dataset = CsvDataset(path, delimiter)
    order = list(reversed(range(len(rows))))
    assert [tuple(dataset[i].values()) for i in order] == [rows[i] for i in order]
    assert list(dataset[0]) == ["prompt", "answer"]


def test_a_row_knows_its_first_line(write):
    path = write(b'a,b\n1,"x\ny"\n2,z\n')
    dataset = CsvDataset(path)
    assert [dataset.where(i) for i in range(2)] == [f"{path}:2", f"{path}:4"]
    assert dataset[0] == {"a": "1", "b": "x\ny"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,ü\n".encode("latin-1"), r":3: not UTF-8.*iconv"),
        ("a,b\n1,ü\n".encode("utf-16"), r":1: not UTF-8"),
        (b"a,b\n1,2,3\n", r":2: 3 fields, but the first line names 2 columns \(a, b\)"),
        (b"a,b\n1\n", r":2: 1 fields"),
        (b'a,b\n1,2\n3,"4\n5,6\n', r":3: not CSV: unexpected end of data \(a quote is not closed"),
        (b'a,b\n1,"2"x\n', r":2: not CSV"),
        (b"a,b\n1,2\n\n3,4\n", r":3: the line is empty: remove it"),
        (b"\na,b\n1,2\n", r":1: the line is empty"),
        (b"a,a\n1,2\n", r":1: column 'a' is there twice"),
        (b"a,\n1,2\n", r":1: a column has no name"),
        (b"a,b\n", "has no rows"),
        (b"", "has no rows"),
    ],
)
def test_a_damaged_file_is_refused_when_it_is_opened(write, content, message):
    with pytest.raises(DataError, match=message):
        CsvDataset.open(f"csv:{write(content)}")


def test_blank_lines_at_the_end_are_no_rows(write):
    assert len(CsvDataset(write(b"a\n1\n\n\n"))) == 1


def test_a_huge_field_is_read_and_leaves_the_limit_alone(write):
    before = csv.field_size_limit()
    assert len(CsvDataset(write(b"a\n" + b"x" * 300_000 + b"\n"))[0]["a"]) == 300_000
    assert csv.field_size_limit() == before


def test_options_and_missing_files(write, tmp_path):
    path = write(b"a;b\n1;2,5\n")
    assert CsvDataset.open(f"csv:{path}?delimiter=semicolon")[0] == {"a": "1", "b": "2,5"}
    assert CsvDataset.open(f"tsv:{write(b'a	b' + bytes([10]) + b'1	2')}")[0] == {
        "a": "1",
        "b": "2",
    }
    with pytest.raises(ConfigError, match="unknown option 'delimeter'. Did you mean 'delimiter'"):
        CsvDataset.open(f"csv:{path}?delimeter=;")
    with pytest.raises(ConfigError, match="delimiter must be"):
        CsvDataset.open(f"csv:{path}?delimiter=ab")
    with pytest.raises(DataError, match="cannot read data file"):
        CsvDataset.open(f"csv:{tmp_path}/no.csv")
    for index in (-1, 1):
        with pytest.raises(IndexError):
            CsvDataset(path)[index]


def test_the_fingerprint_is_that_of_the_content(write):
    first = CsvDataset(write(b"a,b\n1,2\n"))
    assert CsvDataset(write(b"a,b\n1,2\n", "copy.csv")).fingerprint == first.fingerprint
    assert CsvDataset(write(b"a,b\n1,3\n")).fingerprint != first.fingerprint
    assert pickle.loads(pickle.dumps(first))[0] == first[0]
