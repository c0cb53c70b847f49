"""How the groups of one step come together, where a step waits for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlframe.collecting.buffer import Buffer
from rlframe.collecting.entry import GroupEntry
from rlframe.collecting.intake import Intake
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.loop import Tail

if TYPE_CHECKING:
    from rlframe.parts import Parts

__all__ = ["Gathering"]


class Gathering:
    """Takes the groups of a step as its tail policy wants it: all are waited for, or enough are.

    Groups that continue under the next weights stop here, between two tokens; publishing those
    weights lets them go on. ``rollout`` is None where nothing samples.
    """

    def __init__(
        self, intake: Intake, buffer: Buffer, tail: Tail, rollout: WorkerGroup | None
    ) -> None:
        self.intake, self._buffer, self._tail, self._rollout = intake, buffer, tail, rollout

    @classmethod
    def of(cls, parts: Parts) -> Gathering:
        """For a run, with an intake of its own."""
        intake = Intake(
            parts.stream,
            parts.collector,
            parts.buffer,
            max_refills=parts.config.data.max_refills,
            method=type(parts.algorithm).__name__,
            tell=parts.recorder.message,
        )
        tail: Tail = parts.config.tail.load()(parts.config.tail.config)
        return cls(intake, parts.buffer, tail, parts.rollout)

    def take(self, wanted: int, version: int, steps_left: int) -> list[GroupEntry]:
        """Play until ``wanted`` groups wait. Raises TrainingError where too many are turned down.

        No more are ever begun than ``steps_left`` steps, this one included, can use.
        """
        if self._tail.leftover == "none":
            self.intake.fill(wanted)
            return self._buffer.take(wanted, version)
        waits_for_all = self._begin(wanted, version, steps_left)
        while not self._enough(wanted, version, waits_for_all):
            missing = max(wanted - len(self._buffer), 1)
            self.intake.receive(missing, version, wanted, self._tail.wait_s)
        if len(self.intake) and self._tail.leftover == "again":
            self.intake.defer()
        elif len(self.intake) and self._rollout is not None:
            self._rollout.call("pause", "keep").result()
        ages = {e.group_id: (self.intake.born_of(e, version), e.group_id) for e in self._buffer}
        oldest = set(sorted(ages, key=ages.__getitem__)[:wanted])
        return self._buffer.drop(lambda entry: entry.group_id in oldest)

    def _begin(self, wanted: int, version: int, steps_left: int) -> bool:
        """Start groups; whether this step is for those that were put off, and waits for all."""
        intake, waiting = self.intake, len(self._buffer)
        if intake.deferred >= wanted:
            intake.start_deferred(wanted - waiting, version)
            return True
        room = wanted * steps_left - waiting - len(intake) - intake.deferred
        more = self._tail.groups(wanted) - waiting - len(intake)
        intake.start(min(more, room), version)
        intake.start_deferred(wanted - waiting - len(intake), version)
        return False

    def _enough(self, wanted: int, version: int, waits_for_all: bool) -> bool:
        intake = self.intake
        if len(self._buffer) < wanted or (waits_for_all and len(intake)):
            return False
        if self._tail.leftover == "again":
            return True
        last = version - self._tail.bound
        return all(intake.born[group] > last for group in intake.played)
