"""The controller's side of collecting: rows dealt over collectors, handles and summaries back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any

from rlframe.batching.columns import Schema
from rlframe.collecting.collected import Collected
from rlframe.collecting.entry import GroupSummary
from rlframe.interfaces.cluster import Cluster, WorkerGroup
from rlframe.interfaces.transfer import TransferEngine
from rlframe.requests import Row

__all__ = ["CollectorClient", "all_of"]


class CollectorClient:
    """Collectors that a cluster hosts, as one; what they find is read through ``transfer``."""

    def __init__(
        self, hosts: Sequence[WorkerGroup], schema: Schema, transfer: TransferEngine
    ) -> None:
        assert hosts, "no collector"
        self._hosts, self._schema, self._transfer = list(hosts), schema, transfer
        self._next = 0

    @classmethod
    def start(
        cls,
        cluster: Cluster,
        make: Callable[[], Any],
        schema: Schema,
        transfer: TransferEngine,
    ) -> CollectorClient:
        """As many collectors as the cluster wants, each made by ``make`` where it runs."""
        count = cluster.collectors
        names = ["collector"] if count == 1 else [f"collector-{n}" for n in range(count)]
        return cls([cluster.host(name, make) for name in names], schema, transfer)

    def collect(self, rows: Sequence[Row], samples: int = 0) -> Future[Collected]:
        """A group for each row; returns at once where collectors have processes of their own.

        ``samples`` above 0: so many episodes of each row as it asks for, nothing refused.
        The first collector that fails gives its error to the future.
        """

        more = (samples,) if samples else ()
        calls = [host.call("collect", part, *more) for host, part in self._deal(rows)]
        return all_of(calls, self._merged)

    def turn(self, rows: Sequence[Row], at_least: int, wait_s: float) -> Future[Collected]:
        """Start these rows, and give what has ended; see ``Collector.turn``.

        Every collector is asked for its even share of ``at_least``.
        """
        count = len(self._hosts)
        first, self._next = self._next, (self._next + len(rows)) % count
        parts = [list(rows[(place - first) % count :: count]) for place in range(count)]
        share = -(-at_least // count)
        calls = [
            host.call("turn", part, share, wait_s)
            for host, part in zip(self._hosts, parts, strict=True)
        ]
        return all_of(calls, self._merged)

    def drop(self, groups: Sequence[int]) -> None:
        """End groups that :meth:`turn` started, where they are played; nothing of them is given."""
        for call in [host.call("drop", groups) for host in self._hosts]:
            call.result()

    def _merged(self, parts: list[Any]) -> Collected:
        # A collector that accepted no group stores no column, and answers without handles.
        pairs = [part if isinstance(part, tuple) else (part, {}) for part in parts]
        return Collected.merge(
            Collected.of(gathered, blocks, self._schema, self._transfer)
            for gathered, blocks in pairs
        )

    def validate(self, rows: Sequence[Row]) -> Future[list[GroupSummary]]:
        """An episode for each row as it is asked for, in the order of the rows."""
        place = {row.group_id: position for position, row in enumerate(rows)}

        def found(parts: list[Any]) -> list[GroupSummary]:
            groups = [group for part in parts for group in part]
            return sorted(groups, key=lambda group: place[group.group_id])

        return all_of([host.call("validate", part) for host, part in self._deal(rows)], found)

    def close(self) -> None:
        """End the collectors."""
        for host in self._hosts:
            host.close()

    def _deal(self, rows: Sequence[Row]) -> list[tuple[WorkerGroup, list[Row]]]:
        """Rows in turn, so that neighbours of like length are spread."""
        count = len(self._hosts)
        dealt = [(host, list(rows[first::count])) for first, host in enumerate(self._hosts)]
        return [(host, part) for host, part in dealt if part]


def all_of(futures: Sequence[Future[Any]], combine: Callable[[list[Any]], Any]) -> Future[Any]:
    """``combine`` of all results in order, or the first error as soon as there is one."""
    whole: Future[Any] = Future()
    left = set(range(len(futures)))
    lock = threading.Lock()

    def done(number: int, future: Future[Any]) -> None:
        with lock:
            left.discard(number)
            last = not left
        try:
            future.result()
            if last:
                whole.set_result(combine([one.result() for one in futures]))
        except InvalidStateError:
            return  # another one failed before
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            if not whole.done():
                whole.set_exception(error)

    if not futures:
        whole.set_result(combine([]))
    for number, future in enumerate(futures):
        future.add_done_callback(partial(done, number))
    return whole
