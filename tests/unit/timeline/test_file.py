"""The file of a timeline: bounded, of several lives, clocks of other hosts put right."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from rlframe.errors import SnapshotError
from rlframe.timeline import ProcessSpans, Span, Timeline, TimelineFile, now, read_timeline


def process(*spans: Span, host: str | None = None, rank: int = 0, ahead: float = 0.0):
    import socket

    here = host or socket.gethostname()
    moved = tuple(s._replace(start=s.start + ahead, end=s.end + ahead) for s in spans)
    return ProcessSpans(here, rank, 1, now() + ahead, moved)


def span(role: str = "policy", stage: str = "update", start: float = 0.0, end: float = 1.0, **more):
    return Span(role, stage, start, end, **more)


POOLS = {"policy": "train", "rollout": "samples"}


def test_spans_come_back_with_pool_lane_step_and_version(tmp_path):
    file = TimelineFile(tmp_path, POOLS, 10**6)
    file.begin()
    file.mark(1, 0)
    first = now()
    file.mark(2, 1)
    second = now()
    file.write(
        [
            process(span(start=first, end=first + 1, tokens=9), rank=1),
            process(span("rollout", "generate", second, second + 1, version=7)),
            process(span("controller", "gen", second + 2, second + 3)),
            process(span("collector-1", "rewards", second + 3, second + 4)),
        ],
        now(),
    )
    file.close()
    update, generate, gen, rewards = read_timeline(tmp_path)
    assert (update.lane, update.pool, update.step, update.version) == ("train:1", "train", 1, 0)
    assert update.tokens == 9
    assert (generate.lane, generate.step, generate.version) == ("samples:0", 2, 7)
    assert (gen.lane, gen.pool, gen.version) == ("controller", "controller", 1)
    assert (rewards.lane, rewards.pool) == ("collector-1", "collectors")
    assert update.start == pytest.approx(first, abs=1e-5)


def test_another_hosts_clock_is_put_right_by_the_fastest_answer(tmp_path):
    file = TimelineFile(tmp_path, POOLS, 10**6)
    at = now()
    file.write([process(span(start=at, end=at + 1), host="other", ahead=500.0)], now())
    slow = now() - 60.0  # an answer that took a minute says little of the clock
    file.write([process(span(start=at, end=at + 1), host="other", ahead=500.0)], slow)
    file.write([process(span(start=at, end=at + 1))], now())
    file.close()
    starts = [one.start for one in read_timeline(tmp_path)]
    assert starts == pytest.approx([at] * 3, abs=0.05)


def test_the_newest_is_kept_in_a_bounded_size(tmp_path):
    most = 40_000
    file = TimelineFile(tmp_path, POOLS, most)
    for number in range(600):
        file.write([process(span(start=float(number), end=number + 0.5))], now())
    file.close()
    files = list(tmp_path.glob("timeline*.jsonl"))
    assert sum(one.stat().st_size for one in files) <= most
    found = [one.start for one in read_timeline(tmp_path)]
    assert found[-1] == 599.0
    assert len(found) > 50
    assert found == [float(n) for n in range(int(found[0]), 600)]


def test_each_life_counts_and_a_cut_line_does_not(tmp_path):
    for _ in range(2):
        file = TimelineFile(tmp_path, POOLS, 10**6)
        file.begin()
        file.write([process(span(start=now(), end=now()))], now())
        file.close()
    with (tmp_path / "timeline.jsonl").open("a") as out:
        out.write('{"lane": "train:0", "po')
    assert [one.life for one in read_timeline(tmp_path)] == [0, 1]


def test_nothing_is_written_where_none_is_wanted(tmp_path):
    file = TimelineFile(tmp_path, POOLS, 0)
    file.begin()
    file.write([process(span())], now())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SnapshotError, match="timeline_mb"):
        read_timeline(tmp_path)


def test_every_line_is_json(tmp_path):
    file = TimelineFile(tmp_path, POOLS, 10**6)
    file.begin()
    file.write([process(span())], now())
    file.close()
    for line in (tmp_path / "timeline.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)


def test_an_answer_to_an_earlier_question_says_nothing_of_the_clock(tmp_path):
    file = TimelineFile(tmp_path, POOLS, 10**6)
    at = now()
    one = process(span(start=at, end=at + 1), host="other", ahead=500.0)
    file.write([one], now())
    file.write([ProcessSpans("other", 0, 1, math.nan, one.spans)], now())
    file.close()
    starts = [one.start for one in read_timeline(tmp_path)]
    assert starts == pytest.approx([at] * 2, abs=0.05)


def test_a_full_disk_ends_the_timeline_and_not_the_run():
    class Full(TimelineFile):
        def write(self, processes, asked):
            raise OSError(28, "No space left on device")

    timeline = Timeline(Full(Path("nowhere"), POOLS, 10**6))
    assert "No space left" in timeline.fetch(last=True)
    assert timeline.fetch(last=True) == ""
