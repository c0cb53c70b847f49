"""A user's file on a machine that lacks it, or has another of that name."""

from __future__ import annotations

import hashlib

import pytest

from rlframe.errors import PluginError
from rlframe.host import resolve
from rlframe.host.resolve import load_target, ship_file

SOURCE = b"class Mine:\n    value = 7\n"
SHA = hashlib.sha256(SOURCE).hexdigest()


@pytest.fixture(autouse=True)
def _forget():
    before = dict(resolve._shipped)
    yield
    resolve._shipped.clear()
    resolve._shipped.update(before)


def test_a_missing_file_is_read_from_what_was_shipped(tmp_path):
    path = tmp_path / "absent" / "mine.py"
    with pytest.raises(PluginError, match="no file"):
        load_target(f"{path}:Mine", SHA)
    ship_file(str(path), SOURCE)
    assert load_target(f"{path}:Mine", SHA).value == 7
    assert not path.exists()


def test_another_file_of_that_name_is_left_alone_and_not_used(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    value = 8\n")
    with pytest.raises(PluginError, match="is not the file that the run was started with"):
        load_target(f"{path}:Mine", SHA)
    ship_file(str(path), SOURCE)
    assert load_target(f"{path}:Mine", SHA).value == 7
    assert "8" in path.read_text()


def test_an_equal_file_is_used_where_it_lies(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(SOURCE)
    ship_file(str(path), SOURCE)
    assert path not in resolve._shipped
    assert load_target(f"{path}:Mine", SHA).value == 7
