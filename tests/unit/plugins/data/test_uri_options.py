from __future__ import annotations

from pathlib import Path

import pytest

from rlframe.errors import ConfigError
from rlframe_plugins.data.uri import absolute, split_options, split_path


def test_options_follow_the_last_question_mark():
    assert split_options("a?b?c=1&d=x%20y") == ("a?b", {"c": "1", "d": "x y"})
    assert split_options("a") == ("a", {})
    assert split_options("a?") == ("a", {})
    assert split_options("a?c=") == ("a", {"c": ""})


@pytest.mark.parametrize("rest", ["a?b", "a?b=1&c", "a?b=1&b=2"])
def test_what_are_no_options_is_said(rest):
    with pytest.raises(ConfigError, match="no options|twice"):
        split_options(rest)


def test_a_path_that_is_there_may_hold_anything(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "what? a=b & c.csv"
    Path(name).write_text("x")
    assert split_path(f"csv:{name}", ("x",)) == (Path(name), {})
    assert split_path(f"csv:{name}?x=1", ("x",)) == (Path(name), {"x": "1"})
    assert absolute(f"csv:{name}") == f"csv:{tmp_path}/{name}"
    assert absolute(f"csv:{name}?x=1") == f"csv:{tmp_path}/{name}?x=1"
    assert absolute("csv:~/x.csv") == f"csv:{Path.home()}/x.csv"
    with pytest.raises(ConfigError, match="unknown option 'y'"):
        split_path(f"csv:{name}?y=1", ("x",))
    with pytest.raises(ConfigError, match="csv takes no options"):
        split_path("csv:a?y=1")
