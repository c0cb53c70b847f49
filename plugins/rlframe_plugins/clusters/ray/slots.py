"""Calls without a name: an actor's numbered methods, each told once which role's method it is.

An argument costs Ray a tenth of an empty call, since it is pickled, sent and unpickled apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

__all__ = ["COUNT", "Slots", "add_slots"]

COUNT = 32
"""Numbered methods of an actor; calls beyond them carry their names."""


def add_slots(actor: type) -> type:
    """Give a class ``slot_0``, ``slot_1``, ...; ``call_slot(number, args)`` does what they do."""
    for number in range(COUNT):
        setattr(actor, f"slot_{number}", _method(number))
    return actor


def _method(number: int) -> Callable[..., Any]:
    def slot(self: Any, *args: Any) -> Any:
        return self.call_slot(number, args)

    return slot


class Slots:
    """The controller's side, one for each actor. Not for more threads than one."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._free = itertools.count()
        self._methods: dict[str, Any] = {}

    def call(self, what: str, args: tuple[Any, ...]) -> Any:
        """Call "role.method" by its slot; the reference to the answer.

        The actor runs its calls in order, so that it knows the slot's name in time.
        """
        method = self._methods.get(what)
        if method is None:
            number = next(self._free)
            if number >= COUNT:
                return self._actor.run.remote(what, *args)
            self._actor.name_slot.remote(number, what)
            method = self._methods[what] = getattr(self._actor, f"slot_{number}")
        return method.remote(*args)
