"""docs/recovery.md names tests; they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([a-z_/0-9]+\.py)::(test_\w+)`", (ROOT / "docs" / "recovery.md").read_text())


def test_tests_are_named():
    assert len(NAMED) >= 20


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_exists(file, name):
    assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
