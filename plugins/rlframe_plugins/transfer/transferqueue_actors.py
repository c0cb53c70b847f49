"""The TransferQueue of a run: its actors are started by the controller, reached by every process.

The package waits for ever where Ray has no room for its actors, or where one of them has ended;
here both are an error within seconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rlframe.errors import BatchError, ConfigError
from rlframe_plugins.clusters.ray.nodes import Need, Node, read_nodes
from rlframe_plugins.clusters.ray.resolver import Resolver

__all__ = ["QueueGone", "TransferQueueSystem", "room_for"]

_CONTROLLER, _NAMESPACE = "TransferQueueController", "transfer_queue"
_UNIT = "TransferQueueStorageUnit#{}"
_LOOK_S = 2.0
"""How long an answer may take before the actors are looked at."""
_SETTLE_S = 5.0
"""How long what has just ended may still be counted as used, or have its name."""
_HUSHED = {
    "transfer_queue.utils.common": "target_num_threads",
    "torch.fx._symbolic_trace": "is_fx_tracing",
}
"""Loggers, and how lines begin that they write for every request, or once in every process."""
_started: list[TransferQueueSystem] = []
"""Those of this process that were started: they share the actors, which the last one ends."""


class QueueGone(BatchError):
    """An actor of the queue has ended, or gives no answer; says which."""


class TransferQueueSystem:
    """One a process. :meth:`start` is the controller's; others attach with their first request."""

    def __init__(self, units: int, start_timeout_s: float, timeout_s: float) -> None:
        self._units, self._start_timeout_s, self._timeout_s = units, start_timeout_s, timeout_s
        self._resolver: Resolver | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the actors, one storage unit a CPU and one for the controller.

        Raises ConfigError where there is no Ray, no room, or a queue of another run.
        """
        import ray

        if not ray.is_initialized():
            raise ConfigError("transfer 'transferqueue' lies in actors of Ray: use --cluster ray")
        if _started:
            _started.append(self)
            return
        if not _becomes(lambda: not _is_there(_CONTROLLER)):
            raise ConfigError(
                "transfer 'transferqueue': this Ray has a TransferQueue already, of another run, "
                "and can have one only: wait for that run, or use --transfer ray"
            )
        if not _becomes(lambda: room_for(_nodes(), self._units)):
            raise ConfigError(_no_room(_nodes(), self._units))
        _started.append(self)
        self._bounded(self._begin)

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """The result of what ``work()`` begins. Raises QueueGone and what the package raises."""
        with self._lock:
            if self._resolver is None:
                self._attach()
        assert self._resolver is not None
        future = self._resolver.submit(work())
        started = time.monotonic()
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():
                    raise
            gone = self._gone()
            if time.monotonic() - started > self._timeout_s and not gone:
                gone = f"there was no answer in {self._timeout_s:g} s (transfer.timeout_s)"
            if gone:
                future.cancel()
                raise QueueGone(gone)

    def close(self) -> None:
        """On the controller: end the actors. Elsewhere the process only stops asking."""
        if self._resolver is not None:
            self._resolver.close()
            self._resolver = None
        if self not in _started:
            return
        _started.remove(self)
        import ray
        import transfer_queue

        if ray.is_initialized() and not _started:
            transfer_queue.close()
            # The package forgets a unit that waits for a CPU.
            for unit in self._unit_names():
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(unit))
            _becomes(lambda: not any(map(_is_there, self._unit_names())))
            _becomes(lambda: not _is_there(_CONTROLLER))

    def _begin(self) -> None:
        import ray
        import transfer_queue

        storage = {"num_data_storage_units": self._units}
        transfer_queue.init({"backend": {"SimpleStorage": storage}})
        ray.get([actor.__ray_call__.remote(_hush) for actor in self._actors()])

    def _attach(self) -> None:
        import transfer_queue

        if not _is_there(_CONTROLLER):
            raise QueueGone("its controller was not started, or has ended")
        transfer_queue.init()
        _hush()
        self._resolver = Resolver()

    def _gone(self) -> str:
        """Which actor has ended; empty: none has."""
        if not _is_there(_CONTROLLER):
            return "the controller of TransferQueue has ended"
        dead = [unit for unit in self._unit_names() if not _is_there(unit)]
        return f"{dead[0]} has ended, and what it held is lost" if dead else ""

    def _unit_names(self) -> list[str]:
        return [_UNIT.format(number) for number in range(self._units)]

    def _actors(self) -> list[Any]:
        import ray

        units = [ray.get_actor(unit) for unit in self._unit_names()]
        return [ray.get_actor(_CONTROLLER, namespace=_NAMESPACE), *units]

    def _bounded(self, work: Callable[[], Any]) -> None:
        """Do it in a thread that may be left behind."""
        failed: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run, name="rlframe-transferqueue", daemon=True)
        thread.start()
        thread.join(self._start_timeout_s)
        late = thread.is_alive()
        if not late and not failed:
            return
        reason = (
            f"did not start in {self._start_timeout_s:g} s (transfer.start_timeout_s)"
            if late
            else f"did not start: {type(failed[0]).__name__}: {failed[0]}"
        )
        self.close()
        raise ConfigError(f"transfer 'transferqueue' {reason}") from (failed[0] if failed else None)


def room_for(nodes: Sequence[Node], units: int) -> bool:
    """Whether all actors find a CPU: units go to the nodes in turn, the controller to any."""
    if not nodes:
        return False
    share = Counter(number % len(nodes) for number in range(units))
    left = [node.free - share[place] for place, node in enumerate(nodes)]
    return min(left) >= 0 and sum(left) >= 1


def _no_room(nodes: Sequence[Node], units: int) -> str:
    there = ", ".join(f"{node.host} {node.free} of {node.devices}" for node in nodes)
    most = math.ceil(units / max(len(nodes), 1))
    return (
        f"transfer 'transferqueue' needs {units + 1} whole CPUs of Ray beside the pools, one for "
        f"its controller and one for each of transfer.units={units} (up to {most} a node); free "
        f"are: {there}. Offer more (cluster.logical_cpus=N where Ray is started for the run), or "
        "use fewer units or smaller pools"
    )


def _hush(actor: Any = None) -> None:
    """In any process: drop lines that say nothing to a user."""
    for name, start in _HUSHED.items():
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Hush) for one in logger.filters):
            logger.addFilter(_Hush(start))


class _Hush(logging.Filter):
    def __init__(self, start: str) -> None:
        super().__init__()
        self._start = start

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._start)


def _nodes() -> list[Node]:
    return read_nodes(Need("CPU", 1.0))


def _is_there(name: str) -> bool:
    """Whether an actor of that name lives; ``ray.get_actor`` may know one that has died."""
    import ray

    return any(one["name"] == name for one in ray.util.list_named_actors(all_namespaces=True))


def _becomes(true: Callable[[], bool]) -> bool:
    """Whether it is so within some seconds."""
    end = time.monotonic() + _SETTLE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
