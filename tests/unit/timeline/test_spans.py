"""Noting spans: overlapping work is one stretch, each is fetched once, room is bounded."""

from __future__ import annotations

import threading

import pytest

from rlframe.timeline import SpanLog, now


def test_a_block_is_noted_also_where_it_raises():
    log = SpanLog()
    began = now()
    with pytest.raises(KeyError), log.span("policy", "update", tokens=7):
        raise KeyError
    found = log.take(rank=3)
    (span,) = found.spans
    assert (span.role, span.stage, span.tokens, found.rank) == ("policy", "update", 7, 3)
    assert began <= span.start <= span.end <= found.now
    assert log.take().spans == ()


def test_pieces_that_overlap_are_one_stretch():
    log = SpanLog()
    busy = log.busy("rollout", "generate")
    with busy.work():
        with busy.work():
            busy.made(5, version=2)
        assert log.take().spans[0].tokens == 5  # cut, and it goes on
        busy.made(4, version=3)
    with busy.work():
        pass
    first, second = log.take().spans
    assert (first.tokens, first.version) == (4, 3)
    assert second.tokens == 0
    assert first.end <= second.start
    assert log.take().spans == ()


def test_no_more_than_there_is_room_for_and_it_is_told():
    log = SpanLog(most=3)
    for number in range(5):
        with log.span("policy", str(number)):
            pass
    found = log.take()
    assert [span.stage for span in found.spans] == ["2", "3", "4"]
    assert found.lost == 2
    assert log.take().lost == 0


def test_many_threads_at_once_lose_nothing():
    log = SpanLog()
    busy = log.busy("rollout", "generate")

    def work() -> None:
        for _ in range(200):
            with busy.work():
                busy.made(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    tokens = 0
    while any(thread.is_alive() for thread in threads):
        tokens += sum(span.tokens for span in log.take().spans)
    tokens += sum(span.tokens for span in log.take().spans)
    assert tokens == 800
