"""A rollout role as an engine to await: requests are routed over replicas, answers stream back."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import ray

from rlframe.interfaces.rollout import RolloutEngine
from rlframe.recording.engine_figures import joined
from rlframe.requests import Completion, Request
from rlframe.weights.layout import Layout
from rlframe_plugins.clusters.ray.failures import translate
from rlframe_plugins.clusters.ray.replica import RayReplica
from rlframe_plugins.rollouts.router import Router, RouterOptions

if TYPE_CHECKING:
    from torch import Tensor

    from rlframe_plugins.clusters.ray.crew import Member

__all__ = ["RayRollout"]


class RayRollout(RolloutEngine):
    """A :class:`Router` over Ray's replicas, each one worker or several that generate together.

    ``waits``: replicas that die come back, and how long to wait for one; None: a death is the end.
    It may be pickled before its first use, for a collector in a process of its own; each copy is a
    client of its own, to which its completions stream.
    """

    def __init__(
        self, role: str, replicas: Sequence[Sequence[Member]], waits: RouterOptions | None = None
    ) -> None:
        self.config = self.spec = None  # type: ignore[assignment]
        self._arguments = (role, tuple(tuple(members) for members in replicas), waits)
        self.role = role
        client = uuid.uuid4().hex
        returns = waits is not None
        self.replicas = [
            RayReplica(role, members[0], f"{client}/{members[0].rank}", members[1:], returns)
            for members in replicas
        ]
        self._router = Router(role, self.replicas, waits)

    def __reduce__(self) -> tuple[Any, ...]:
        return RayRollout, self._arguments

    async def generate(self, request: Request) -> Completion:
        """See :class:`RolloutEngine`."""
        return await self._router.generate(request)

    def abort(self, request_id: str) -> None:
        """See :class:`RolloutEngine`: of this client's requests, or another one's."""
        self._router.abort(request_id)
        self._all("abort", request_id)

    def pause(self, mode: Literal["keep", "abort"] = "keep") -> None:
        """See :class:`RolloutEngine`."""
        self._all("pause", mode)

    def resume(self) -> None:
        """See :class:`RolloutEngine`."""
        self._all("resume")

    def sleep(self, level: int = 1) -> None:
        """See :class:`RolloutEngine`."""
        self._all("sleep", level)

    def wake(self) -> None:
        """See :class:`RolloutEngine`."""
        self._all("wake")

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Weights do not pass through here: the checkpoint engine gives them to the workers."""
        raise NotImplementedError("weights reach the workers through the checkpoint engine")

    def layout(self, params: Layout) -> Layout:
        """See :class:`RolloutEngine`."""
        found: Layout = self._all("layout", params)[0]
        return found

    @property
    def version(self) -> int:
        """The lowest version among the replicas."""
        return int(min(self._all("version"), default=-1))

    def stats(self) -> dict[str, float]:
        """Sums over the replicas; what the router counted is in :meth:`routed`."""
        return joined(self._all("stats"))

    def gauges(self) -> dict[str, float]:
        """The same."""
        return joined(self._all("gauges"))

    def routed(self) -> tuple[dict[str, float], dict[str, float]]:
        """See :class:`RolloutEngine`: of the router in this process."""
        return self._router.stats(), self._router.gauges()

    def close(self) -> None:
        """End the streams; the engines belong to their workers."""
        for replica in self.replicas:
            replica.close()

    def _all(self, name: str, *args: Any) -> list[Any]:
        """The answers of all that take requests."""
        up = [one for one in self.replicas if one in self._router.up]
        try:
            refs = [one.member.actor.control.remote(self.role, name, *args) for one in up]
            return list(ray.get(refs))
        except ray.exceptions.RayError as error:
            raise translate(error, self.role, self.replicas[0].member) from error
