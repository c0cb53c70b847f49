"""A server that speaks SGLang's protocol over real HTTP, with any rollout engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlframe.interfaces.rollout import RolloutEngine
from rlframe.testing.http_server import Denied, HttpServer
from rlframe.testing.sglang_scheduler import FakeScheduler

__all__ = ["FakeSGLang"]


class FakeSGLang(HttpServer):
    """``scheduler`` does what the server is asked; see :class:`FakeScheduler`."""

    def __init__(self, engine: RolloutEngine, decode: Any, *, incremental: bool = False) -> None:
        self.scheduler = FakeScheduler(engine, decode, incremental=incremental)
        self.engine, self.model_path = engine, engine.spec.path
        self.metrics: dict[str, float] = {}
        """What it shows at /metrics; empty: it was started without that."""
        self._group: Any = None
        super().__init__("fake-sglang")

    async def answer(self, method: str, path: str, body: Any) -> Any:
        """See :class:`HttpServer`."""
        if path == "/generate":
            return self.scheduler.generate(body)
        call = getattr(self, "_on" + path.replace("/", "_"), None)
        if call is None:
            raise Denied(404, {"detail": "Not Found"})
        return await call(body or {})

    # --- figures ------------------------------------------------------------------------------

    async def _on_metrics(self, body: Mapping[str, Any]) -> Any:
        """As with ``--enable-metrics``, of which :attr:`metrics` is a part."""
        if not self.metrics:
            raise Denied(404, {"detail": "Not Found"})
        lines = [f'{name}{{model_name="m"}} {value}' for name, value in self.metrics.items()]
        return "\n".join(["# TYPE sglang:num_running_reqs gauge", *lines])

    async def _on_model_info(self, body: Mapping[str, Any]) -> Any:
        return {"model_path": self.model_path, "weight_version": self.scheduler.weight_version}

    async def _on_server_info(self, body: Mapping[str, Any]) -> Any:
        sizes = {"tp_size": 1, "pp_size": 1, "dp_size": 1}
        streams = {"incremental_streaming_output": self.scheduler.incremental}
        return {"version": "0.5.fake", **streams, **sizes}

    async def _on_health(self, body: Mapping[str, Any]) -> Any:
        return None

    # --- control ------------------------------------------------------------------------------

    async def _on_abort_request(self, body: Mapping[str, Any]) -> Any:
        await self.scheduler.abort(body.get("rid", ""), everything=bool(body.get("abort_all")))

    async def _on_pause_generation(self, body: Mapping[str, Any]) -> Any:
        await self.scheduler.pause(body["mode"])
        return {"message": "Generation paused successfully.", "status": "ok"}

    async def _on_continue_generation(self, body: Mapping[str, Any]) -> Any:
        await self.scheduler.go_on()
        return {"message": "Generation continued successfully.", "status": "ok"}

    async def _on_flush_cache(self, body: Mapping[str, Any]) -> Any:
        return "Cache flushed."

    async def _on_release_memory_occupation(self, body: Mapping[str, Any]) -> Any:
        await self.scheduler.release(body.get("tags"))

    async def _on_resume_memory_occupation(self, body: Mapping[str, Any]) -> Any:
        await self.scheduler.reoccupy(body.get("tags"))

    # --- weights ------------------------------------------------------------------------------

    async def _on_update_weights_from_disk(self, body: Mapping[str, Any]) -> Any:
        from safetensors.torch import load_file

        try:
            tensors = load_file(Path(body["model_path"]) / "model.safetensors")
        except OSError as error:
            raise Denied(400, {"success": False, "message": str(error)}) from error
        if why := await self.scheduler.change(tensors):
            raise Denied(400, {"success": False, "message": why})
        self.model_path = body["model_path"]
        if body.get("weight_version") is not None:
            self.scheduler.weight_version = str(body["weight_version"])
        return {"success": True, "message": "Succeeded to update model weights."}

    async def _on_begin_weight_update(self, body: Mapping[str, Any]) -> Any:
        return _said(await self.scheduler.begin_update())

    async def _on_end_weight_update(self, body: Mapping[str, Any]) -> Any:
        return _said(await self.scheduler.end_update())

    async def _on_init_weights_update_group(self, body: Mapping[str, Any]) -> Any:
        self._group = await asyncio.to_thread(_joined, body)
        return {"success": True, "message": "Succeeded to initialize custom process group."}

    async def _on_update_weights_from_distributed(self, body: Mapping[str, Any]) -> Any:
        """A part. One that it will not take it does not wait for either."""
        if self.scheduler.refuses or not self.scheduler.updating:
            return _said(await self.scheduler.take({}, None))
        part = await asyncio.to_thread(_received, self._group, body)
        return _said(await self.scheduler.take(part, str(body["weight_version"])))

    async def _on_destroy_weights_update_group(self, body: Mapping[str, Any]) -> Any:
        self._group = None
        return {"success": True, "message": "Succeeded to destroy custom process group."}


def _said(answer: tuple[bool, str]) -> dict[str, Any]:
    found = {"success": answer[0], "message": answer[1]}
    if not answer[0]:
        raise Denied(400, found)
    return found


def _joined(body: Mapping[str, Any]) -> Any:
    """The group as torch makes it for SGLang: of a store whose keys have its name before them."""
    from datetime import timedelta

    from torch import distributed as dist

    found: Any = dist
    name, world = body["group_name"], body["world_size"]
    assert body["backend"] == "gloo", "there is no GPU behind this server"
    store = found.TCPStore(body["master_address"], body["master_port"], world, is_master=False)
    for prefix in (name, f"{name}/", "cpu/"):
        store = found.PrefixStore(prefix, store)
    return found.ProcessGroupGloo(store, body["rank_offset"], world, timedelta(seconds=60))


def _received(group: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    import torch
    from torch.distributed import BroadcastOptions

    options, found = BroadcastOptions(), {}  # from rank 0
    for name, dtype, shape in zip(body["names"], body["dtypes"], body["shapes"], strict=True):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        group.broadcast([found[name]], options).wait()
    return found
