"""``rlframe recipes``: every recipe is listed with what it is for, and printed as it is."""

from __future__ import annotations

import pytest

from rlframe.cli.main import main
from rlframe_templates.recipe_list import FOLDER, first_sentence

NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def test_every_recipe_is_listed_in_a_line(capsys):
    assert main(["recipes"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(20 < len(line.partition("  ")[2].strip()) < 115 for line in lines)
    assert last == "rlframe recipes NAME > run.yaml; rlframe fit --config run.yaml"


@pytest.mark.parametrize("name", ["grpo", "ppo_70b_128"])
def test_one_is_printed_as_it_is(name, capsys):
    assert main(["recipes", name]) == 0
    assert capsys.readouterr().out == (FOLDER / f"{name}.yaml").read_text()


def test_an_unknown_one_has_a_nearest(capsys):
    assert main(["recipes", "gpro"]) == 2
    assert "unknown recipe 'gpro'. Did you mean 'grpo'?" in capsys.readouterr().err


def test_the_sentence_may_run_over_lines():
    assert first_sentence("# One thing\n# and more. Another.\nalgo: x\n") == "One thing and more"
