from __future__ import annotations

import io
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rlframe_plugins.loggers.curve import plot, sparkline
from rlframe_plugins.loggers.history import History, brief, duration
from rlframe_plugins.loggers.terminal import TerminalLogger

METRICS = {
    "critic/rewards/mean": 0.5,
    "actor/kl_loss": 0.002,
    "actor/entropy": 1.25,
    "response_length/mean": 12.0,
    "perf/throughput": 12345.0,
    "timing_s/gen": 0.5,
    "timing_s/update_actor": 0.3,
    "timing_s/step": 0.9,
}


class Screen(io.StringIO):
    """What a run prints, with or without a terminal."""

    encoding = "utf-8"


def run(steps, *, terminal=False, width=80, first_step=0, run_dir="runs/x", total=None, **more):
    screen = Screen()
    console = Console(file=screen, force_terminal=terminal, width=width, legacy_windows=False)
    logger = TerminalLogger(console=console)
    logger.start(str(run_dir), None, total or steps, first_step)
    if not first_step:
        logger.log(0, {"val/reward/mean": 0.4, "val/episodes": 9.0})
    for step in range(first_step + 1, steps + 1):
        metrics = {**METRICS, "critic/rewards/mean": step / steps, **more}
        if step == steps:
            metrics["val/reward/mean"] = 0.93
        logger.log(step, metrics)
    logger.close()
    return screen.getvalue()


def test_without_a_terminal_a_step_is_one_line():
    text = run(12)
    steps = [line for line in text.splitlines() if line.startswith("step ")]
    assert len(steps) == 12
    assert steps[2] == (
        "step  3/12  reward 0.250  kl 2.0e-03  entropy 1.250  length 12.000  tok/s 12.3k  0.9s  "
        "eta 8.1s"
    )
    assert "\x1b" not in text


@pytest.mark.parametrize("terminal", [False, True])
def test_the_end_shows_curve_validation_and_place(terminal):
    text = run(20, terminal=terminal, run_dir="runs/my run")
    end = text[text.rindex("reward over 20 steps") :].splitlines()
    assert end[1].startswith("   1 ┤")
    assert any(0x2800 < ord(c) < 0x2900 for c in "".join(end))
    assert end[-2] == "val reward 0.4 -> 0.93 (step 0 -> 20)"
    assert end[-1] == "run: runs/my run"


def test_a_terminal_shows_a_live_view():
    text = run(5, terminal=True)
    for word in ("step 3/5", "reward", "kl", "entropy", "tok/s", "gen 0.5s", "eta", "▁"):
        assert word in text
    assert "\x1b[?25h" in text, "the cursor is shown again"


ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("width", [40, 80, 300])
@pytest.mark.parametrize("terminal", [False, True])
def test_lines_keep_to_the_width(width, terminal):
    shown = re.split(r"\n|\x1b\[2K|\r", run(3, width=width, terminal=terminal))
    widest = max(len(ESCAPES.sub("", line)) for line in shown)
    assert widest <= (min(width, 120) if terminal else 120)


def test_a_sample_and_a_message_are_printed():
    screen = Screen()
    logger = TerminalLogger(console=Console(file=screen, width=80))
    logger.message("too early")
    logger.start("runs/x", None, 3, 0)
    logger.samples(1, [{"prompt": "1+1=", "response": "2\n[bold]", "reward": 1.0}])
    logger.samples(1, [{"prompt": "p" * 200, "response": "r", "reward": None}])
    logger.samples(1, [])
    logger.message("[red]not markup[/red]")
    logger.close()
    text = screen.getvalue()
    assert "sample: '1+1=' -> '2\\n[bold]'  reward 1\n" in text
    assert "p..." in text
    assert "[red]not markup[/red]" in text


def test_not_a_number_is_shown_and_does_not_break_the_view():
    for terminal in (False, True):
        nan = {"actor/kl_loss": math.nan, "actor/entropy": math.inf}
        assert "kl nan" in run(3, **nan)
        assert "nan" in run(3, terminal=terminal, **nan)


def test_a_resumed_run_shows_the_whole_curve(tmp_path):
    lines = [{"step": 0, "val/reward/mean": 0.1}]
    lines += [{"step": s, "critic/rewards/mean": 0.01 * s, "x": None} for s in range(1, 8)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 8, "cri')
    shown = run(10, first_step=5, run_dir=tmp_path)
    assert "step  6/10" in shown
    assert "reward over 10 steps" in shown
    assert "val reward 0.1 -> 0.93 (step 0 -> 10)" in shown


def test_an_offline_method_shows_its_loss():
    screen = Screen()
    logger = TerminalLogger(console=Console(file=screen, width=80))
    logger.start("runs/x", None, 2, 0)
    for step in (1, 2):
        logger.log(step, {"actor/nll": 2.0 / step, "timing_s/step": 100.0, "val/loss": 1.5})
    logger.close()
    text = screen.getvalue()
    assert "step 1/2  loss 2.000  1m40s  eta 1m40s" in text
    assert "loss over 2 steps" in text
    assert "val loss 1.5 -> 1.5" in text


def test_closing_without_a_start_is_nothing():
    TerminalLogger().close()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), max_size=300),
    st.integers(12, 90),
    st.integers(1, 8),
    st.booleans(),
)
def test_curves_fit_their_box(values, width, height, unicode):
    lines = plot(values, width, height, unicode=unicode)
    finite = [v for v in values if math.isfinite(v)]
    assert bool(lines) == bool(finite)
    if lines:
        assert len(lines) == height
        assert all(line.isascii() for line in lines) or unicode
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)


def test_a_rising_curve_rises():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert plot([0.0, 1.0, 2.0], 9, 3, unicode=False) == [
        "2 |    **",
        "  |  **",
        "0 |**",
    ]


def test_a_level_curve_has_no_division_by_zero():
    assert len(plot([0.5] * 5, 20, 3)) == 3
    assert len(sparkline([0.5] * 5, 10)) == 5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.000"),
        (0.5, "0.500"),
        (1e-5, "1.0e-05"),
        (1234.4, "1234"),
        (2.5e6, "2500.0k"),
        (-1e30, "-1.0e+30"),
    ],
)
def test_numbers_are_brief(value, text):
    assert brief(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4s"), (12.2, "12s"), (59.7, "1m00s"), (185, "3m05s"), (7805, "2h10m")],
)
def test_durations_are_brief(seconds, text):
    assert duration(seconds) == text


def test_the_pace_is_that_of_the_latest_steps():
    history = History(total_steps=30)
    for step in range(1, 21):
        history.add(step, {"timing_s/step": 100.0 if step < 11 else 2.0})
    assert history.eta_s() == 20.0
