"""From prompts to waiting groups: what was started, what came back, what was turned down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from rlframe.collecting.buffer import Buffer
from rlframe.collecting.collected import Collected
from rlframe.collecting.entry import GroupEntry
from rlframe.errors import StuckError, TrainingError
from rlframe.requests import Row

__all__ = ["Intake", "Player", "Prompts"]

_TURN_S = 0.25
"""Longest that one call waits inside a collector, so that others are answered in between."""


class Prompts(Protocol):
    """Where rows come from: a ``PromptStream``."""

    sampling: Any

    def draw(self, count: int) -> list[Row]:
        """The next rows."""


class Player(Protocol):
    """What plays groups: a ``CollectorClient``, or a simulated one."""

    def collect(self, rows: Sequence[Row]) -> Future[Collected]:
        """A group for each row, all together."""

    def turn(self, rows: Sequence[Row], at_least: int, wait_s: float) -> Future[Collected]:
        """Start these rows, and give what has ended; see ``Collector.turn``."""

    def drop(self, groups: Sequence[int]) -> None:
        """End these groups; nothing of them is given."""


class Intake:
    """Fills a buffer. ``born`` holds the version of the weights when a group was started.

    ``figures`` count since :meth:`take_figures` what was turned down.
    """

    def __init__(
        self,
        prompts: Prompts,
        player: Player,
        buffer: Buffer,
        *,
        max_refills: int,
        method: str,
        tell: Any,
    ) -> None:
        """``tell`` takes a line for people; ``method`` is named where too few are accepted."""
        self._prompts, self._player, self._buffer = prompts, player, buffer
        self._max_refills, self._method, self._tell = max_refills, method, tell
        self._open: dict[int, Row] = {}
        self._again: list[Row] = []
        self._deferred: list[Row] = []
        self._answers: list[Future[Collected]] = []
        self._fault = ""
        self._turned_down = 0
        self.born: dict[int, int] = {}
        self._figures = _no_figures()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def deferred(self) -> int:
        """Prompts that were put off by :meth:`defer` and wait for :meth:`start_deferred`."""
        return len(self._deferred)

    @property
    def played(self) -> list[int]:
        """Ids of the open groups."""
        return list(self._open)

    def born_of(self, entry: GroupEntry, version: int) -> int:
        """The oldest weights that sampled a token of a group, or those that it was started under.

        ``version`` where neither is known.
        """
        known = self.born.get(entry.group_id, version)
        return entry.oldest_version if entry.oldest_version >= 0 else known

    def take_figures(self) -> dict[str, float]:
        """Refused and failed groups, skipped episodes and requests sent again since the last call.

        Gauges of routers are those of the last answer.
        """
        figures, self._figures = self._figures, _no_figures()
        self._turned_down, self._fault = 0, ""
        return figures

    # --- all at once --------------------------------------------------------------------------

    def fill(self, wanted: int) -> None:
        """Play until the buffer holds ``wanted`` groups, and nothing is left open.

        Raises TrainingError where too many are turned down.
        """
        for _ in range(self._max_refills + 1):
            missing = wanted - len(self._buffer)
            if missing <= 0:
                return
            self._accept(self._player.collect(self._rows(missing)).result())
        if len(self._buffer) < wanted:
            raise self._too_few(wanted)

    # --- meanwhile ----------------------------------------------------------------------------

    def start(self, count: int, version: int) -> None:
        """Begin ``count`` further groups under weights ``version``; returns at once."""
        if count <= 0:
            return
        self._begin(self._rows(count), version)

    def start_deferred(self, count: int, version: int) -> None:
        """Begin up to ``count`` groups again that were put off, the earliest draws first."""
        if count > 0:
            rows, self._deferred = self._deferred[:count], self._deferred[count:]
            self._begin(rows, version)

    def defer(self) -> None:
        """End the groups that are played; their prompts are put off."""
        self._harvest()
        self._player.drop(self.played)
        self._deferred = sorted([*self._deferred, *self._open.values()], key=_draw)
        for group in self._open:
            del self.born[group]
        self._open = {}

    def _begin(self, rows: Sequence[Row], version: int) -> None:
        self._open |= {row.group_id: row for row in rows}
        self.born |= dict.fromkeys((row.group_id for row in rows), version)
        self._answers.append(self._player.turn(rows, 0, 0.0))

    def receive(self, at_least: int, version: int, wanted: int, limit_s: float) -> None:
        """Wait for ``at_least`` of the open groups to end (0: look only).

        For each that was turned down another one is begun, so that ``wanted`` can be reached.
        Raises StuckError after ``limit_s`` seconds without any, TrainingError where too many are
        refused.
        """
        before, since = len(self._open), time.monotonic()
        while True:
            turned_down = self._harvest()
            if self._turned_down > self._max_refills * wanted:
                raise self._too_few(wanted)
            self.start(turned_down, version)
            ended = before - len(self._open)
            if ended >= at_least or not self._open:
                return
            if time.monotonic() - since > limit_s:
                raise StuckError(
                    f"no group ended in {limit_s:g} s (wait_s) while {len(self._open)} "
                    f"were played, the oldest for {self._oldest()}: look at rollout, environment "
                    "and reward, or raise the limit"
                )
            self._answers.append(self._player.turn([], at_least - ended, _TURN_S))

    def state_dict(self) -> dict[str, Any]:
        """Prompts that were drawn and whose groups did not come back; they are played again."""
        rows = [*self._again, *self._open.values()]
        return {
            "open": [_row_state(row) for row in sorted(rows, key=_draw)],
            "deferred": [_row_state(row) for row in self._deferred],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        self._again = [_row(one, self._prompts.sampling) for one in state["open"]]
        self._deferred = [_row(one, self._prompts.sampling) for one in state["deferred"]]

    # --- inside -------------------------------------------------------------------------------

    def _rows(self, count: int) -> list[Row]:
        """Rows of an earlier life first, then new ones."""
        again, self._again = self._again[:count], self._again[count:]
        return again + self._prompts.draw(count - len(again)) if len(again) < count else again

    def _harvest(self) -> int:
        """Take what calls brought; how many groups were turned down."""
        answers, self._answers = self._answers, []
        turned_down = 0
        for answer in answers:
            found = answer.result()
            gone = [*found.refused, *found.failed]
            turned_down += len(gone)
            for group in (*gone, *(entry.group_id for entry in found.accepted)):
                del self._open[group]
            for group in gone:
                del self.born[group]
            self._accept(found)
        return turned_down

    def _accept(self, found: Collected) -> None:
        self._buffer.put(found.accepted)
        self._turned_down += len(found.refused) + len(found.failed)
        self._figures["collect/refused_groups"] += len(found.refused)
        self._figures["collect/failed_groups"] += len(found.failed)
        self._figures["collect/skipped_episodes"] += found.skipped_episodes
        self._figures["collect/late_episodes"] += found.late_episodes
        for name, value in found.routed.items():
            name = f"collect/router/{name}"
            self._figures[name] = self._figures.get(name, 0.0) + value
        self._figures |= {f"collect/router/{n}": v for n, v in found.router.items()}
        if found.fault:
            self._fault = f". The last fault: {found.fault}"
            self._tell(f"left out and counted: {found.fault}")
        for group, reason in found.failed.items():
            self._tell(f"prompt {group} left out: {reason}")

    def forget(self, groups: Iterable[int]) -> None:
        """These have left the buffer."""
        for group in groups:
            self.born.pop(group, None)

    def _oldest(self) -> str:
        row = self._open[min(self._open)]
        return f"prompt {row.group_id} ({row.source})"

    def _too_few(self, wanted: int) -> TrainingError:
        return TrainingError(
            f"after {self._max_refills + 1} draws only {len(self._buffer)} of {wanted} "
            f"groups were accepted: {self._method}.accept refused "
            f"{self._figures['collect/refused_groups']:.0f}, "
            f"{self._figures['collect/failed_groups']:.0f} had "
            "no score. Use prompts of mixed difficulty, a higher temperature, more "
            f"algo.samples_per_prompt, or raise data.max_refills{self._fault}"
        )


def _no_figures() -> dict[str, float]:
    names = ("refused_groups", "failed_groups", "skipped_episodes", "late_episodes")
    return {f"collect/{name}": 0.0 for name in names}


def _draw(row: Row) -> int:
    return row.group_id


def _row_state(row: Row) -> dict[str, Any]:
    return {
        "prompt_ids": list(row.prompt_ids),
        "columns": dict(row.columns),
        "group_id": row.group_id,
        "source": row.source,
    }


def _row(state: Mapping[str, Any], sampling: Any) -> Row:
    return Row(
        tuple(state["prompt_ids"]),
        dict(state["columns"]),
        int(state["group_id"]),
        sampling,
        str(state["source"]),
    )
