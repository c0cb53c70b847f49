"""A worker group in this process, for checkpoint engines."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from rlframe.calling.protocol import Mesh
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.rollout import RolloutEngine


class FakeGroup(WorkerGroup):
    """Calls every member in turn; ``called`` are the methods so far."""

    def __init__(self, role: str, members: list[Any]) -> None:
        self.role, self.members, self.mesh = role, members, Mesh(dp=len(members))
        self.called: list[str] = []

    def call(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.called.append(method)
        try:
            future.set_result([getattr(one, method)(*args) for one in self.members])
        except Exception as error:  # noqa: BLE001 - handed to whoever asks for the result
            future.set_exception(error)
        return future

    def client(self) -> RolloutEngine:
        engine: RolloutEngine = self.members[0]
        return engine
