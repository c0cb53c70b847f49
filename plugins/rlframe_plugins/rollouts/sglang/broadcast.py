"""Weights to an SGLang server's workers by broadcast, in a process group that lives for one load.

By ``/init_weights_update_group``, ``/update_weights_from_distributed`` between
``/begin_weight_update`` and ``/end_weight_update``, and ``/destroy_weights_update_group``. This
side is rank 0; server and trainer need one torch version.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlframe.errors import RolloutError
from rlframe_plugins.rollouts.sglang.protocol import SGLangServer
from rlframe_plugins.rollouts.sglang.weights import buckets, part_name

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Broadcast"]


class Broadcast:
    """``address`` is this machine's as servers reach it; ``backend`` is nccl or gloo.

    ``bucket_bytes`` travel under one call; ``limit_s`` bounds each wait for the other side.
    """

    def __init__(self, address: str, backend: str, bucket_bytes: int, limit_s: float) -> None:
        self._address = address or socket.gethostname()
        self._backend, self._bucket = backend, bucket_bytes
        self._wait = timedelta(seconds=limit_s)
        self._turn = asyncio.Lock()
        """Groups of several servers at once could wait for each other on a device."""

    async def send(self, server: SGLangServer, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Give a server every weight. Raises RolloutError.

        Until the last of them its weights are named so that no token of theirs is taken.
        """
        async with self._turn:
            group, name = await self._meet(server)
            try:
                await _told(server, "/begin_weight_update", {})
                try:
                    parts = list(buckets(tensors.items(), self._bucket))
                    for number, part in enumerate(parts, 1):
                        last = number == len(parts)
                        await self._send_part(server, group, name, part, version, last=last)
                finally:
                    await server.ask("POST", "/end_weight_update", {})
            finally:
                await asyncio.to_thread(_leave, group)
            await _told(server, "/destroy_weights_update_group", {"group_name": name})

    async def _meet(self, server: SGLangServer) -> tuple[Any, str]:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        world = 1 + await _workers(server)
        name = f"rlframe-{uuid.uuid4().hex}"
        with socket.create_server((self._address, 0), backlog=64) as listening:
            port = listening.getsockname()[1]
            store = TCPStore(
                self._address,
                port,
                world,
                is_master=True,
                timeout=self._wait,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        body = {
            "master_address": self._address,
            "master_port": port,
            "rank_offset": 1,
            "world_size": world,
            "group_name": name,
            "backend": self._backend,
        }
        made = asyncio.to_thread(_joined, store, name, world, self._backend, self._wait)
        group, _ = await _both(server, made, _told(server, "/init_weights_update_group", body))
        return group, name

    async def _send_part(
        self,
        server: SGLangServer,
        group: Any,
        name: str,
        part: list[tuple[str, Tensor]],
        version: int,
        *,
        last: bool,
    ) -> None:
        body = {
            "names": [one for one, _ in part],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in part],
            "shapes": [list(tensor.shape) for _, tensor in part],
            "group_name": name,
            "flush_cache": last,
            "abort_all_requests": False,
            "weight_version": part_name(version, last=last),
        }
        device = "cuda" if self._backend == "nccl" else "cpu"
        sent = asyncio.to_thread(_broadcast, group, [t for _, t in part], device, self._wait)
        await _both(server, sent, _told(server, "/update_weights_from_distributed", body))


async def _workers(server: SGLangServer) -> int:
    """Processes of a server that hold weights. Raises RolloutError where they cannot be told."""
    found = await server.ask("GET", "/server_info")
    try:
        tensor, pipeline, data = (int(found[f"{kind}_size"]) for kind in ("tp", "pp", "dp"))
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            f"{server.name}/server_info does not say its tp_size, pp_size and dp_size ({error}): "
            "use rollout.weights=disk"
        ) from error
    if data > 1:
        raise RolloutError(
            f"{server.name} has dp_size={data}: start a server for each, or use "
            "rollout.weights=disk"
        )
    return tensor * pipeline


async def _told(server: SGLangServer, path: str, body: Mapping[str, Any]) -> None:
    answer = await server.ask("POST", path, body)
    if not isinstance(answer, Mapping) or not answer.get("success"):
        raise RolloutError(f"{server.name}{path} failed: {answer}")


async def _both(server: SGLangServer, ours: Any, theirs: Any) -> tuple[Any, Any]:
    """This side's part and the server's call, at once; what the server says comes first."""
    asked = asyncio.ensure_future(theirs)
    done = asyncio.ensure_future(ours)
    done.add_done_callback(lambda one: one.cancelled() or one.exception())
    await asyncio.wait({asked, done}, return_when=asyncio.FIRST_EXCEPTION)
    if asked.done():
        told = asked.result()
    try:
        found = await done
    except RuntimeError as error:
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        raise RolloutError(f"{server.name} did not take the weights: {error}") from error
    return found, told if asked.done() else await asked


def _joined(store: Any, name: str, world: int, backend: str, wait: timedelta) -> Any:
    """As SGLang's workers join, so that both find the same keys in the store."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed import distributed_c10d as c10d

    make: Any = c10d._new_process_group_helper
    prefixed = PrefixStore(name, store)
    kind = c10d.Backend(backend)
    group, _ = make(world, 0, [], kind, prefixed, group_name=name, timeout=wait)
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(world)}
    return group


def _broadcast(group: Any, tensors: list[Tensor], device: str, wait: timedelta) -> None:
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    for tensor in tensors:
        group.broadcast([tensor.to(device).contiguous()], options).wait(wait)


def _leave(group: Any) -> None:
    from torch import distributed as dist

    dist.destroy_process_group(group)
