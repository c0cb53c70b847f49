"""``rlframe chat``: once, line by line, and what it refuses before a model is loaded."""

from __future__ import annotations

import io

import pytest

from rlframe.cli.main import main

TINY = "pkg:rlframe_templates/models/tiny"
GREEDY = ["--temperature", "0"]


def test_one_answer(capsys):
    assert main(["chat", TINY, "--plain", "--once", "2+3=", *GREEDY]) == 0
    assert capsys.readouterr().out == "5\n"


def test_a_conversation_goes_on_until_it_is_forgotten(capsys, monkeypatch):
    lines = "2+3=\n2+3=\n/new\n2+3=\n/quit\nnever\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["chat", TINY, "--plain", "rollout.max_new_tokens=3", *GREEDY]) == 0
    first, _, again = capsys.readouterr().out.splitlines()
    assert first == again == "5"


def test_a_template_and_a_system_message(capsys):
    words = ["chat", TINY, "--once", "1+1=", "--system", "add", *GREEDY]
    assert main(words) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "chat needs a model or a run first"),
        (["steps=1"], "chat needs a model or a run first"),
        (["x", "--model", "y"], "--model is the first word here"),
        (["no-such-model-folder/x/y", "--once", "a"], "there is no folder"),
        ([TINY, "--onze", "a"], "Did you mean '--once'"),
    ],
)
def test_what_it_refuses(words, message, capsys):
    assert main(["chat", *words]) != 0
    assert message in capsys.readouterr().err


def test_its_help_names_its_flags(capsys):
    assert main(["chat", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--once", "--plain", "--system", "/new"))
