"""Numbered methods of an actor, without Ray: a fake that keeps the order of its calls."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from rlframe_plugins.clusters.ray.slots import COUNT, Slots, add_slots


@add_slots
class Worker:
    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.asked: list[str] = []

    def name_slot(self, number: int, what: str) -> None:
        self.asked.append("name_slot")
        assert number not in self.names
        self.names[number] = what

    def call_slot(self, number: int, args: tuple) -> tuple:
        self.asked.append("slot")
        return (self.names[number], *args)

    def run(self, what: str, *args: object) -> tuple:
        self.asked.append("run")
        return (what, *args)


class Actor:
    """``actor.method.remote(...)``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=partial(getattr(self._worker, name)))


def test_a_name_travels_once():
    worker = Worker()
    slots = Slots(Actor(worker))
    for argument in (1, 2, 3):
        assert slots.call("policy.infer", (argument,)) == ("policy.infer", argument)
        assert slots.call("critic.infer", ()) == ("critic.infer",)
    assert worker.asked.count("name_slot") == 2
    assert "run" not in worker.asked


def test_what_has_no_slot_carries_its_name():
    worker = Worker()
    slots = Slots(Actor(worker))
    for number in range(COUNT + 3):
        for _ in range(2):
            assert slots.call(f"policy.m{number}", (number,)) == (f"policy.m{number}", number)
    assert worker.asked.count("name_slot") == COUNT
    assert worker.asked.count("run") == 6
