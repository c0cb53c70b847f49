"""Idle time and the critical path against brute force, over random spans."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.timeline import Written, busy_s, critical_path, report, use_of_pools
from rlframe.timeline.chrome import trace
from rlframe.timeline.picture import gantt, page


def written(lane: str, start: int, length: int, stage: str = "update", life: int = 0) -> Written:
    pool = lane.partition(":")[0]
    return Written(lane, pool, "role", stage, float(start), float(start + length), 1, 0, 3, life)


SPANS = st.lists(
    st.builds(
        written,
        st.sampled_from(["a:0", "a:1", "b:0", "controller"]),
        st.integers(0, 20),
        st.integers(0, 6),
        st.sampled_from(["update", "generate"]),
    ),
    min_size=1,
    max_size=9,
)


def busy_by_ticks(spans) -> float:
    """Whole seconds in which something ran."""
    return float(sum(any(s.start <= t < s.end for s in spans) for t in range(40)))


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_busy_and_idle_time_are_those_of_counted_seconds(spans):
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    for pool, use in use_of_pools(spans).items():
        lanes = {s.lane for s in spans if s.pool == pool}
        counted = [busy_by_ticks([s for s in spans if s.lane == lane]) for lane in lanes]
        assert use.lanes == len(lanes)
        assert use.busy_s == pytest.approx(sum(counted) / len(lanes))
        assert use.busy_s + use.idle_s == pytest.approx(end - begin)


def longest_chain(spans) -> float:
    """Over every set of spans of which each begins when the one before has ended."""
    work = [s for s in spans if s.pool != "controller"]
    best = 0.0
    for size in range(1, len(work) + 1):
        for some in itertools.combinations(sorted(work, key=lambda s: (s.end, s.start)), size):
            if all(a.end <= b.start for a, b in itertools.pairwise(some)):
                best = max(best, sum(s.seconds for s in some))
    return best


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_the_critical_path_is_the_longest_chain(spans):
    path = critical_path(spans)
    assert all(one in spans and one.pool != "controller" for one in path)
    assert all(a.end <= b.start for a, b in itertools.pairwise(path))
    assert sum(s.seconds for s in path) == pytest.approx(longest_chain(spans))


@settings(max_examples=100, deadline=None)
@given(SPANS)
def test_path_and_rest_make_the_whole_time_where_the_controller_does_one_thing_at_once(spans):
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    workers = [s for s in spans if s.pool != "controller"]
    own = [written("controller", t, 2, "gen") for t in range(int(begin), int(end) - 1, 4)]
    found = report([*workers, *own] or spans)
    if workers and workers != spans:
        begin = min(s.start for s in [*workers, *own])
        end = max(s.end for s in [*workers, *own])
    whole = sum(found.path_s.values()) + sum(found.rest_s.values())
    assert whole == pytest.approx(found.seconds)
    if workers:
        assert found.seconds == pytest.approx(end - begin)


def test_pauses_between_lives_are_nobodys_idle_time():
    spans = [written("a:0", 0, 4), written("a:0", 100, 4, life=1)]
    found = report(spans)
    assert (found.lives, found.seconds, found.pools["a"].idle) == (2, 8.0, 0.0)


def test_playing_is_a_wait_and_not_on_the_path():
    spans = [written("c", 0, 10, "play"), written("a:0", 1, 3, "generate"), written("b:0", 5, 2)]
    assert [s.stage for s in critical_path(spans)] == ["generate", "update"]
    assert use_of_pools(spans)["c"].idle == 0.0


def test_busy_of_nothing_is_nothing():
    assert busy_s([]) == 0.0


def test_a_trace_holds_every_span_by_pool_and_role():
    spans = [written("a:0", 2, 3), written("b:0", 4, 1, "generate")]
    found = json.loads(json.dumps(trace(spans)))["traceEvents"]
    pieces = [one for one in found if one["ph"] == "X"]
    assert [(p["ts"], p["dur"], p["name"]) for p in pieces] == [
        (0.0, 3e6, "update"),
        (2e6, 1e6, "generate"),
    ]
    names = {one["pid"]: one["args"]["name"] for one in found if one["name"] == "process_name"}
    assert [names[p["pid"]] for p in pieces] == ["a", "b"]
    assert pieces[0]["args"] == {"step": 1, "version": 0, "tokens": 3}


def test_the_picture_is_well_formed_and_needs_nothing_from_elsewhere():
    spans = [written(f"a:{n}", n, 2, "<update>") for n in range(100)]
    found = report(spans)
    svg = gantt(spans, found)
    root = ET.fromstring(svg)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "and 20 rows more" in texts
    assert any(text is not None and text.startswith("idle ") for text in texts)
    whole = page("a & b", spans, found, "words")
    assert "a &amp; b" in whole
    assert not any(
        word in whole.replace("http://www.w3.org/2000/svg", "") for word in ("http", "src=")
    )


def test_spans_too_short_to_see_are_drawn_together():
    spans = [written("a:0", 0, 100_000)] + [
        Written("a:1", "a", "role", "update", t / 1000, t / 1000 + 0.0005, 1, 0, 1)
        for t in range(5000)
    ]
    svg = gantt(spans, report(spans))
    assert svg.count("<rect") < 40
    assert "5000 x update" in svg
