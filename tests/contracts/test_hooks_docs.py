"""Every hook says what it is for, and the page on plugins shows every one of them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from rlframe.host import hookspecs
from rlframe.host.components import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if hasattr(function, "rlframe_spec")
}


def test_the_hooks_are_those_of_the_design():
    assert set(HOOKS) == {
        "rlframe_cli",
        "rlframe_components",
        "rlframe_defaults",
        "rlframe_fit_end",
        "rlframe_fit_start",
        "rlframe_open_dataset",
        "rlframe_step_end",
    }


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_hook_has_a_docstring_that_names_its_arguments(name):
    text = inspect.getdoc(HOOKS[name]) or ""
    assert text.endswith(".")
    assert len(text.split()) > 5


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_the_page_shows_a_hook_with_its_arguments(name):
    arguments = ", ".join(inspect.signature(HOOKS[name]).parameters)
    assert f"`{name}({arguments})`" in PAGE.read_text(encoding="utf-8")


def test_the_page_names_no_hook_that_is_not_there():
    shown = set(re.findall(r"`(rlframe_\w+)\(", PAGE.read_text(encoding="utf-8")))
    assert shown <= set(HOOKS)


def test_the_page_names_every_kind():
    text = PAGE.read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


def test_public_hooks_are_in_all():
    assert set(HOOKS) <= set(hookspecs.__all__)
