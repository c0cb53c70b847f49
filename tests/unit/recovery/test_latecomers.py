"""When replicas that come late may join: while trainers hold what was published, and only then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlframe.errors import SyncError
from rlframe.recovery.latecomers import Latecomers


class Group:
    """A rollout group whose workers arrive when a test says so."""

    def __init__(self) -> None:
        self.arrived = False
        self.ready: Callable[[str], object] = print

    def watch(self, lost: Callable[[str], object], ready: Callable[[str], object]) -> None:
        self.lost, self.ready = lost, ready

    def admit(self) -> bool:
        found, self.arrived = self.arrived, False
        return found


class Checkpoint:
    """Notes what happens to the weights, in order."""

    def __init__(self, group: Group, events: list[str]) -> None:
        self.group, self.events, self.fault = group, events, ""

    def publish(self) -> None:
        self.events.append("publish with it" if self.group.admit() else "publish")

    def join(self) -> int:
        self.group.admit()
        self.events.append("join")
        if self.fault:
            raise SyncError(self.fault)
        return 1


class Run:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.told: list[str] = []
        self.group = Group()
        self.checkpoint = Checkpoint(self.group, self.events)
        given: Any = (self.checkpoint, self.group, self.told.append)
        self.late = Latecomers(*given)
        self.pool = ThreadPoolExecutor(1)

    def arrive(self) -> Any:
        """A worker is ready; its thread waits until it may join."""
        self.group.arrived = True
        return self.pool.submit(self.group.ready, "replica 1")

    def publish(self) -> None:
        with self.late.publishing():
            self.checkpoint.publish()


def test_between_a_publish_and_an_update_it_joins_at_once() -> None:
    run = Run()
    run.publish()
    run.arrive().result(10)
    assert run.events == ["publish", "join"]
    assert run.told == ["replica 1 is back, with the current weights"]


@pytest.mark.parametrize("begun", [False, True])
def test_else_the_next_publish_takes_it_along(begun: bool) -> None:
    """Before the first publish, and while an update changes the weights."""
    run = Run()
    if begun:
        run.publish()
        run.late.updating()
    waits = run.arrive()
    with pytest.raises(TimeoutError):
        waits.result(0.1)
    run.publish()
    waits.result(10)
    assert run.events[-1] == "publish with it"
    assert len(run.told) == 1


def test_an_update_waits_for_one_that_joins_just_now() -> None:
    run = Run()
    run.publish()
    joining, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        joining.set()
        go_on.wait(10)
        run.events.append("joined")
        return 1

    run.checkpoint.join = slow  # type: ignore[method-assign]
    waits = run.arrive()
    assert joining.wait(10)

    def update() -> None:
        run.late.updating()
        run.events.append("update")

    with ThreadPoolExecutor(1) as other:
        updating = other.submit(update)
        go_on.set()
        updating.result(10)
    waits.result(10)
    assert run.events == ["publish", "joined", "update"]


def test_what_fails_is_told_and_the_run_goes_on() -> None:
    run = Run()
    run.publish()
    run.checkpoint.fault = "half of it is missing"
    run.arrive().result(10)
    (line,) = run.told
    assert "waits for the next weights" in line
    assert "half of it is missing" in line


def test_the_end_of_a_run_lets_nobody_wait() -> None:
    run = Run()
    waits = run.arrive()
    run.late.close()
    waits.result(10)
    assert (run.events, run.told) == ([], [])


def test_without_a_rollout_there_is_nothing_to_do() -> None:
    late = Latecomers()
    late.updating()
    with late.publishing():
        pass
    late.close()
