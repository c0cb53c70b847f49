from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.errors import ConfigError, DataError
from rlframe_plugins.data.jsonl import JsonlDataset

ROWS = st.lists(
    st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none())),
    min_size=1,
    max_size=6,
)


@pytest.fixture
def write(tmp_path):
    def write_bytes(content: bytes, name: str = "x.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write_bytes


@settings(max_examples=50, deadline=None)
@given(ROWS, st.sampled_from([b"\n", b"\r\n"]), st.booleans(), st.booleans(), st.booleans())
def test_rows_come_back(tmp_path_factory, rows, newline, ends, ascii_only, bom):
    path = tmp_path_factory.mktemp("d") / "x.jsonl"
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
    content = newline.join(lines) + (newline if ends else b"")
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + content)
    dataset = JsonlDataset(path)
    assert len(dataset) == len(rows)
    order = list(reversed(range(len(rows))))
    assert [dataset[i] for i in order] == [rows[i] for i in order]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": "\xff"}\n', r":2: not UTF-8"),
        (b'{"a": 1}\n\n{"a": 2}\n', r":2: the line is empty"),
        (b'\n{"a": 2}\n', r":1: the line is empty"),
        (b'{"a": 1}\n{"a": 2', r":2: not JSON.*cut off"),
        (b'{"a": 1}\n{"a" 2}\n{"a": 3}\n', r":2: not JSON, column 6"),
        (b'{"a": 1}\n[1, 2]\n', r":2: the line is not an object"),
        (b'"text"\n', r":1: the line is not an object"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", r":1: nested too deeply"),
        (b'{"a": ' + b"9" * 6000 + b"}\n", r":1: .*digits"),
        (b'{"a": 1}\r{"a": 2}\r', r":1: not JSON.*CR alone"),
        (b'{"a": 1}{"a": 2}\n', r":1: not JSON.*here are several"),
        (b'[\n{"a": 1}\n]\n', r":1: not JSON.*several lines: jq"),
        ('{"a": 1}\n'.encode("utf-16"), r":1: not UTF-8.*iconv -f utf-16 -t utf-8"),
        ('{"a": 1}\n'.encode("utf-32"), r":1: not UTF-8.*iconv -f utf-32 -t utf-8"),
        ('{"a": 1}\n'.encode("utf-16-le"), r":1: not JSON.*iconv -f utf-16le"),
        ('{"a": "\u00e4"}\n'.encode("latin-1"), r":1: not UTF-8.*iconv -f latin1"),
        (b"\x1f\x8b\x08\x00", r":1: not UTF-8.*packed by gzip: unpack it"),
        (b"PAR1\x15\xff", r":1: not UTF-8.*write parquet:PATH"),
        (b"", r"has no rows"),
        (b"\n\n", r"has no rows"),
    ],
)
def test_a_damaged_file_is_refused_when_it_is_opened(write, content, message):
    path = write(content)
    with pytest.raises(DataError, match=message) as caught:
        JsonlDataset.open(f"jsonl:{path}")
    assert str(path) in str(caught.value)


def test_blank_lines_at_the_end_are_no_rows(write):
    assert len(JsonlDataset(write(b'{"a": 1}\n\n \n'))) == 1


def test_a_missing_file_or_a_folder_is_named(tmp_path):
    for path in (tmp_path / "no.jsonl", tmp_path):
        with pytest.raises(DataError, match="cannot read data file"):
            JsonlDataset.open(f"jsonl:{path}")


def test_options_are_refused_and_a_question_mark_in_a_name_is_not(write):
    path = write(b'{"a": 1}\n', "what?.jsonl")
    assert len(JsonlDataset.open(f"jsonl:{path}")) == 1
    with pytest.raises(ConfigError, match="no options"):
        JsonlDataset.open("jsonl:x.jsonl?limit=3")


def test_the_fingerprint_is_that_of_the_content(write):
    first = JsonlDataset(write(b'{"a": 1}\n')).fingerprint
    assert JsonlDataset(write(b'{"a": 1}\n', "copy.jsonl")).fingerprint == first
    assert JsonlDataset(write(b'{"a": 2}\n')).fingerprint != first
    assert JsonlDataset(write(b'{"a": 1}')).fingerprint != first


def test_it_travels_to_another_process(write):
    dataset = JsonlDataset(write(b'{"a": 1}\n{"a": 2}\n'))
    assert dataset[1] == {"a": 2}
    assert pickle.loads(pickle.dumps(dataset))[0] == {"a": 1}


def test_a_row_outside_is_an_index_error(write):
    dataset = JsonlDataset(write(b'{"a": 1}\n'))
    for index in (1, -1):
        with pytest.raises(IndexError):
            dataset[index]
