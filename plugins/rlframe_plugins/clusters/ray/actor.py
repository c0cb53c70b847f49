"""The process of one rank: a Ray actor around :class:`rlframe.calling.worker.Worker`.

Calls to engines run one after the other on one thread, in the order in which the controller made
them. What must answer meanwhile (stacks, requests for completions) has threads of its own.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray

from rlframe.batching.batch import Batch
from rlframe.batching.packed import Packed
from rlframe.calling.worker import Worker
from rlframe.host.resolve import ship_file
from rlframe.interfaces.strategy import RankInfo
from rlframe.interfaces.transfer import Handle, Produced, TransferEngine
from rlframe.recovery.stacks import all_stacks
from rlframe.timeline import ProcessSpans
from rlframe_plugins.clusters.ray.serving import Serving
from rlframe_plugins.clusters.ray.slots import add_slots

__all__ = ["Boot", "Reply", "Where", "WorkerActor", "WorkerProcess"]


@dataclass(frozen=True)
class Boot:
    """What a worker needs before it can unpickle anything: import path, and users' files."""

    sys_path: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Where:
    """A process: its host, Ray's node, its id, and a port of the host that was free."""

    host: str = "?"
    node_id: str = ""
    pid: int = 0
    port: int = 0


@dataclass(frozen=True)
class Reply:
    """First part of an answer with columns.

    ``bundles`` names the columns in each of the objects that follow, whose references the caller
    keeps as ``stored``. A column in ``lengths_of`` has the lengths of the one named there, which
    is another of the answer or one of the batch that was sent.
    """

    value: Any
    handles: dict[str, Handle]
    has_value: bool
    bundles: Sequence[tuple[str, ...]] = ()
    lengths_of: Mapping[str, str] = field(default_factory=dict)
    stored: Sequence[Any] = ()


class WorkerProcess:
    """See the module. Arguments with user classes come pickled, after the files they need."""

    def __init__(self, boot: Boot, label: str) -> None:
        self._label = label
        known = set(sys.path)
        sys.path.extend(p for p in boot.sys_path if p not in known and os.path.isdir(p))
        for path, contents in boot.files.items():
            ship_file(path, contents)
        self._serving = Serving()
        self._worker: Worker | None = None
        self._slots: dict[int, tuple[str, str]] = {}

    def __repr__(self) -> str:
        return self._label

    def where(self) -> Where:
        """Where this process is."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
        node = ray.get_runtime_context().get_node_id()
        return Where(socket.gethostname(), node, os.getpid(), port)

    def start(self, payload: bytes) -> None:
        """Take rank and transfer engine; seeds and threads."""
        rank, transfer = pickle.loads(payload)
        assert isinstance(rank, RankInfo)
        self._worker = Worker(rank, transfer.load()(transfer.config))
        self._worker.start()

    def add(self, how: str, payload: bytes) -> None:
        """Call the worker's ``add_model``, ``add_rollout`` or ``host``."""
        getattr(self._worker, how)(*pickle.loads(payload))

    def run(self, what: str, *args: Any) -> Any:
        """Call a role's engine, ``what`` is "role.method"; what it returns."""
        return self._held.run(*_named(what), *args)

    def name_slot(self, number: int, what: str) -> None:
        """What the numbered method is: "role.method"; see :mod:`.slots`."""
        assert number not in self._slots, f"slot {number} is {self._slots[number]}"
        self._slots[number] = _named(what)

    def call_slot(self, number: int, args: tuple[Any, ...]) -> Any:
        """Call what was named so."""
        return self._held.run(*self._slots[number], *args)

    def run_shared(self, what: str, args: tuple[Any, ...]) -> Any:
        """The same with arguments that several ranks share."""
        return self._held.run(*_named(what), *args)

    def run_quiet(self, what: str, *args: Any) -> None:
        """Call a role's engine on a rank whose result does not count."""
        self._held.call(*_named(what), *args)

    def run_columns(self, what: str, *args: Any) -> Iterator[Any]:
        """Call a role's engine: a :class:`Reply`, then the columns as objects of the caller's."""
        outcome = self._held.call(*_named(what), *args)
        yield from _parts(outcome, self._held.transfer, args)

    def close(self) -> None:
        """Close every engine."""
        if self._worker is not None:
            self._worker.close()

    @property
    def _held(self) -> Worker:
        assert self._worker is not None, "start() comes first"
        return self._worker

    # --- beside the calls ---------------------------------------------------------------------

    def stacks(self) -> str:
        """Python stacks of all threads."""
        return all_stacks()

    def spans(self) -> ProcessSpans | None:
        """What ran here since this was asked before; None before the start."""
        if self._worker is None:
            return None
        return self._worker.spans.take(self._worker.rank.rank)

    def live(self) -> None:
        """Answer when this process ends, by its end."""
        threading.Event().wait()

    def submit(self, role: str, client: str, requests: list[Any]) -> None:
        """Start generating; completions go to the client's stream."""
        self._serving.submit(self._held.engines[role], client, requests)

    def control(self, role: str, name: str, *args: Any) -> Any:
        """Read an attribute of a rollout engine or call a method of it, beside the calls."""
        found = getattr(self._held.engines[role], name)
        return found(*args) if callable(found) else found

    def completions(self, client: str) -> Iterator[list[Any]]:
        """What has ended since, for ever; lists of (key, completion or exception)."""
        yield from self._serving.stream(client)


def _named(what: str) -> tuple[str, str]:
    """Role and method. One argument instead of two spares a tenth of an empty call."""
    role, _, method = what.rpartition(".")
    return role, method


def _parts(outcome: Any, transfer: TransferEngine, args: Sequence[Any]) -> Iterator[Any]:
    if isinstance(outcome, Produced):
        value, columns, has_value = outcome.value, outcome.columns, True
    elif _is_columns(outcome):
        value, columns, has_value = None, outcome, False
    else:
        yield Reply(outcome, {}, True)
        return
    if not transfer.caller_owned:
        yield Reply(value, transfer.put(columns), has_value)
        return
    handles = transfer.describe(columns)
    bundles, same = transfer.bundles(handles), _known_lengths(handles, args)
    light = {n: replace(h, lengths=None) if n in same else h for n, h in handles.items()}
    yield Reply(value, light, has_value, bundles, same)
    for names in bundles:
        yield [transfer.stored(columns[name]) for name in names]


def _known_lengths(handles: Mapping[str, Handle], args: Sequence[Any]) -> dict[str, str]:
    """By name, the column whose lengths it has too: one of the caller's batch, or one before."""
    known: dict[str, Any] = {}
    batch = next((arg for arg in args if isinstance(arg, Batch)), None)
    if batch is not None:
        axes = {batch.schema[name].axis: name for name in reversed(batch.columns)}
        known = {name: batch.lengths(name) for axis, name in axes.items() if axis is not None}
    found = {}
    for name, handle in handles.items():
        lengths = handle.lengths
        if lengths is not None:
            like = [one for one, others in known.items() if np.array_equal(others, lengths)]
            if like:
                found[name] = like[0]
            else:
                known[name] = lengths
    return found


def _is_columns(outcome: Any) -> bool:
    return (
        isinstance(outcome, Mapping)
        and bool(outcome)
        and all(isinstance(one, Packed) for one in outcome.values())
    )


_BESIDE = {"side": ("stacks", "spans", "submit", "control"), "streams": ("completions", "live")}
for _group, _names in _BESIDE.items():
    for _name in _names:
        _marked = ray.method(concurrency_group=_group)(vars(WorkerProcess)[_name])
        setattr(WorkerProcess, _name, _marked)

WorkerActor = ray.remote(concurrency_groups={"side": 4, "streams": 8})(add_slots(WorkerProcess))
"""The actor class; options are given where it is placed."""
