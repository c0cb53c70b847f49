"""Calling one role's engines on all ranks of a crew, by the protocol of the method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import ray

from rlframe.batching.batch import Batch
from rlframe.batching.opaque import bytes_of
from rlframe.calling.fan_out import Share, collect, distribute
from rlframe.calling.protocol import Mesh, Protocol
from rlframe.calling.worker import declared_protocol
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.interfaces.transfer import Handle, TransferEngine
from rlframe_plugins.clusters.ray.actor import Reply
from rlframe_plugins.clusters.ray.client import RayRollout
from rlframe_plugins.clusters.ray.crew import Crew, Member, Sent

__all__ = ["RayGroup", "RayHosted"]

_SHARED_BY = 4
"""Ranks from which on equal arguments are stored once instead of sent to each."""


class RayGroup(WorkerGroup):
    """A role on the ranks of a crew. ``engine`` is the class that its workers hold.

    ``replicas``: for a rollout the ranks of each replica, the one that takes requests first.
    """

    def __init__(
        self,
        role: str,
        mesh: Mesh,
        crew: Crew,
        engine: type,
        transfer: TransferEngine,
        replicas: Sequence[Sequence[int]] = (),
    ) -> None:
        self.role, self.mesh, self.crew, self._replicas = role, mesh, crew, replicas
        self._engine, self._transfer = engine, transfer
        self._rules: dict[str, Protocol] = {}

    def call(self, method: str, *args: Any) -> Future[Any]:
        """See :class:`WorkerGroup`."""
        if method not in self._rules:
            self._rules[method] = declared_protocol(self._engine, method)
        rule = self._rules[method]
        try:
            shares = distribute(rule, self.mesh, args, width=self.width)
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            future: Future[Any] = Future()
            future.set_exception(error)
            return future
        what = f"{self.role}.{method}"
        counted = frozenset(rule.collected(self.mesh))
        common = _common(shares)

        def send(member: Member) -> Sent | None:
            share = shares[member.rank]
            if share is None:
                return None
            actor, args = member.actor, share.args
            if member.rank not in counted:
                return Sent(actor.run_quiet.remote(what, *args))
            if rule.combine == "concat":
                stream = actor.run_columns.options(num_returns="streaming")
                return Sent(stream.remote(what, *args), streamed=True)
            if common is not None:
                return Sent(actor.run_shared.remote(what, common))
            return Sent(self.crew.slots[member.rank].call(what, args))

        def finish(answers: dict[int, Any]) -> Any:
            opened = {r: self._opened(answer, shares[r]) for r, answer in answers.items()}
            if rule.combine in ("list", "first"):
                opened = {r: opened.get(r) for r in counted}
            return collect(rule, self.mesh, shares, opened)

        return self.crew.call(self.role, method, send, finish)

    def client(self) -> RolloutEngine:
        """See :class:`WorkerGroup`."""
        members = self.crew.members
        replicas = [[members[rank] for rank in one] for one in self._replicas]
        return RayRollout(self.role, replicas, self.crew.waits)

    @property
    def away(self) -> frozenset[int]:
        """See :class:`WorkerGroup`."""
        return self.crew.away

    @property
    def arrived(self) -> bool:
        """See :class:`WorkerGroup`."""
        return self.crew.arrived

    def admit(self) -> bool:
        """See :class:`WorkerGroup`."""
        return self.crew.admit()

    def watch(self, lost: Callable[[str], object], ready: Callable[[str], object]) -> None:
        """See :class:`WorkerGroup`."""
        self.crew.watch(lost, ready)

    def _opened(self, answer: Any, share: Share | None) -> Any:
        if share is None or not isinstance(answer, Reply):
            return answer
        return _attached(answer, self._transfer, share.args)


class RayHosted(WorkerGroup):
    """Any object in a process of its own."""

    mesh = Mesh()

    def __init__(self, name: str, crew: Crew, transfer: TransferEngine) -> None:
        self.role, self.crew, self._transfer = name, crew, transfer

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the object; its value, or ``(value, handles)`` for a ``Produced``."""

        what = f"{self.role}.{method}"

        def send(member: Member) -> Sent:
            stream = member.actor.run_columns.options(num_returns="streaming")
            return Sent(stream.remote(what, *args), streamed=True)

        return self.crew.call(self.role, method, send, lambda found: self._open(found[0], args))

    def client(self) -> RolloutEngine:
        """A hosted object generates nothing."""
        raise NotImplementedError(f"'{self.role}' is no rollout engine")

    def close(self) -> None:
        """End its process."""
        self.crew.close(wait_s=5.0)

    def _open(self, reply: Reply, args: Sequence[Any]) -> Any:
        if not reply.handles:
            return reply.value
        handles = _attached(reply, self._transfer, args)
        return (reply.value, handles) if reply.has_value else handles


def _attached(reply: Reply, transfer: TransferEngine, args: Sequence[Any]) -> dict[str, Handle]:
    """Handles as this process uses them; the lengths and values that came are counted as read."""
    handles = dict(reply.handles)
    arrays = [a for h in handles.values() for a in (h.lengths, h.values) if a is not None]
    transfer.bytes_read += sum(map(bytes_of, arrays))
    batch = next((arg for arg in args if isinstance(arg, Batch)), None)
    for name, source in reply.lengths_of.items():
        given = handles[source].lengths if batch is None or source in handles else None
        lengths = batch.lengths(source) if batch is not None and given is None else given
        handles[name] = replace(handles[name], lengths=lengths)
    for names, stored in zip(reply.bundles, reply.stored, strict=True):
        for place, name in enumerate(names):
            handles[name] = transfer.attach(handles[name], stored, place)
    return handles


def _common(shares: Sequence[Share | None]) -> Any:
    """A reference to arguments that many ranks share, or None."""
    given = {id(share.args): share for share in shares if share is not None}
    called = sum(share is not None for share in shares)
    if len(given) != 1 or called < _SHARED_BY:
        return None
    (share,) = given.values()
    return ray.put(share.args) if share.args else None
