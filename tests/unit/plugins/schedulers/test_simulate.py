"""``rlframe simulate``, and the engine under it against hand-made cases."""

from __future__ import annotations

import json
import random
import statistics

import pytest

from rlframe.cli.main import main
from rlframe.simulation import SimEngine
from rlframe_plugins.schedulers.simulate import length_of


def test_schedulers_side_by_side(capsys):
    """Nothing is trained in no time: sync takes the sum, a stream the longer of the two."""
    sizes = "--steps 40 --prompts 4 --samples 2 --replicas 2 --lengths constant"
    speeds = "--mean-tokens 100 --token-ms 10 --sequence-ms 0 --train-s 1 --sync-s 0 --json"
    assert main(f"simulate {sizes} {speeds}".split()) == 0
    found = json.loads(capsys.readouterr().out)
    runs = {run["scheduler"]: run for run in found["runs"]}
    assert runs["sync"]["step_s"] == pytest.approx(2.0)
    assert runs["one-step-off"]["seconds"] == pytest.approx(41.0)
    assert runs["async 2 in-flight"]["seconds"] == pytest.approx(41.0)
    assert runs["sync"]["staleness"] == {"0": 1.0}
    assert found["assumptions"]["train_s"] == 1.0
    parts = {"generation_s": 1.0, "training_s": 1.0, "publish_s": 0.0, "overlap_at_most": 2.0}
    assert found["sync_step"] == pytest.approx(parts)


def test_a_table_with_its_assumptions(capsys):
    flags = "--steps 2 --prompts 2 --samples 1 --train-s 3"
    assert main(["simulate", *flags.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("assumed: steps 2, prompts 2")
    assert "train_s 3.0" in lines[0]
    assert "training 3.0 s" in lines[1]
    assert [line.split("  ")[0] for line in lines[3:5]] == ["sync", "sync early-stop"]


@pytest.mark.parametrize(("share", "gain"), [(0.5, 2.0), (0.25, 4 / 3)])
def test_training_may_be_given_as_a_share_of_a_step(share, gain, capsys):
    """1 s of generation; overlapping hides the shorter of both, but for the first step."""
    sizes = "--steps 60 --prompts 4 --samples 2 --replicas 2 --lengths constant --sync-s 0"
    speeds = f"--mean-tokens 100 --token-ms 10 --sequence-ms 0 --train-share {share} --json"
    assert main(f"simulate {sizes} {speeds}".split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumptions"]["train_s"] == pytest.approx(share / (1 - share))
    assert found["assumptions"]["train_share"] == share
    assert found["sync_step"]["overlap_at_most"] == pytest.approx(gain)
    runs = {run["scheduler"]: run for run in found["runs"]}
    assert runs["one-step-off"]["times_sync"] == pytest.approx(gain, rel=0.02)


@pytest.mark.parametrize(
    "odd",
    [
        "--steps 0",
        "--train-share 1",
        "--accept 0",
        "--mean-tokens 0",
        "--replicas -1",
        "--train-s -5",
        "--sigma -1",
    ],
)
def test_odd_numbers_are_refused(odd, capsys):
    assert main(["simulate", *odd.split()]) != 0
    assert odd.split()[0] in capsys.readouterr().err


def test_lengths_have_their_mean():
    for kind in ("lognormal", "geometric", "uniform", "constant"):
        draw = length_of(kind, 100, 10**6)
        source = random.Random(0)
        assert statistics.mean(draw(source) for _ in range(20_000)) == pytest.approx(100, rel=0.05)
    assert length_of("constant", 100, 30)(random.Random(0)) == 30


def test_sequences_share_a_replica():
    """Pace 1 s a token alone, 2 s for two: 3 and 5 tokens end at 6 and 8 s."""
    engine = SimEngine(1, 2, lambda running: float(running))
    engine.submit(0, [3, 5])
    assert engine.next_end() == pytest.approx(6.0)
    engine.advance(5.9)
    assert engine.take() == []
    engine.advance(0.2)
    assert [one.tokens for one in engine.take()] == [3]
    assert engine.next_end() == pytest.approx(8.0)
    engine.advance(10.0)
    assert [one.tokens for one in engine.take()] == [5]
    assert engine.busy_s == pytest.approx(8.0)


def test_what_does_not_fit_waits():
    engine = SimEngine(1, 1, lambda running: 1.0)
    engine.submit(0, [2, 2])
    engine.advance(3.0)
    (first,) = engine.take()
    engine.version = 7
    engine.advance(1.0)
    (second,) = engine.take()
    assert (first.started_s, second.started_s) == (0.0, 2.0)
    assert (second.first_version, second.last_version) == (0, 7)


def test_a_failed_replica_loses_its_work_to_the_others():
    engine = SimEngine(2, 4, lambda running: 1.0)
    engine.submit(0, [4])
    engine.advance(3.0)
    engine.fail(0, 100.0)
    engine.advance(3.9)
    assert engine.take() == []
    engine.advance(0.2)
    assert [one.started_s for one in engine.take()] == [3.0]
