"""Each limit is crossed by figures beyond it and by none within; advice names real options."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.report import RunRecord, read_run
from rlframe_plugins.report.checks import CHECKS, find, growth
from tests.unit.report.made import make_run

IDS = [check.name for check in CHECKS]
RELATIVE = ("growth", "change", "peak")


def series(check, factor):
    """Figures whose measure is ``factor`` beyond the limit."""
    name = check.measure.__name__
    target = check.limit + factor * (abs(check.limit) / 2 or 1.0) * (-1 if check.below else 1)
    if name == "growth":
        return [1.0] * 4 + [target] * 12
    if name == "change":
        return [1.0, 1.0 + target]
    if name == "peak":
        return [1.0] * 7 + [target]
    return [target] * (1 if name == "total" else 8)


def run_of(check, values):
    rows = [{"step": n, check.metric: value} for n, value in enumerate(values)]
    return RunRecord(Path(), "r", rows=rows)


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_beyond_the_limit_it_warns_and_within_it_does_not(check):
    assert check in [found.check for found in find(run_of(check, series(check, 1)))]
    assert check not in [found.check for found in find(run_of(check, series(check, -0.5)))]


@pytest.mark.parametrize("check", CHECKS, ids=IDS)
def test_it_says_why_and_what_to_try(check):
    assert len(check.reason.split()) > 4
    assert check.advice


def test_no_figure_is_no_warning():
    assert find(RunRecord(Path(), "r")) == []


def test_few_steps_have_no_growth():
    assert growth(run_of(CHECKS[0], [1.0, 9.0]).series(CHECKS[0].metric)) is None


def test_a_run_that_learns_has_no_warning_and_a_bad_one_has(tmp_path):
    assert find(read_run(make_run(tmp_path / "good"))) == []
    names = {found.check.name for found in find(read_run(make_run(tmp_path / "bad", bad=True)))}
    assert names == {
        "Groups without signal",
        "Many tokens are clipped",
        "Trainer and sampler disagree",
        "Entropy collapses",
        "Responses grow",
    }


def test_advice_names_methods_and_options_that_exist():
    host = current_host()
    methods = host.components("algorithm")
    fields = {
        field.name
        for name in methods
        for field in dataclasses.fields(resolve(host, "algorithm", name).value.Config)
    }
    advice = " ".join(one for check in CHECKS for one in check.advice)
    assert set(re.findall(r"--algo ([a-z-]+)", advice)) <= set(methods)
    assert set(re.findall(r"\balgo\.(\w+)", advice)) <= fields
    assert len(re.findall(r"\balgo\.(\w+)", advice)) > 5
