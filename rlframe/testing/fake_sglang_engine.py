"""SGLang's in-process engine as a program sees it, with any rollout engine behind it.

The names, arguments and answers are those of SGLang 0.5.22 and later; nothing of it is installed or
copied. A test makes a package ``sglang`` of this, which :func:`install` does for one process.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from types import ModuleType, SimpleNamespace
from typing import Any

from rlframe.interfaces.rollout import RolloutEngine
from rlframe.testing.sglang_scheduler import FakeScheduler

__all__ = ["FakeEngine", "FakeManager", "install"]


@dataclass
class GenerateReqInput:
    """A request; the fields that the fake reads."""

    rid: str
    input_ids: list[int]
    sampling_params: dict[str, Any]
    return_logprob: bool = False
    logprob_start_len: int = -1
    return_sampling_mask: bool = False
    sampling_logprobs_mode: str | None = None
    stream: bool = False


@dataclass
class PauseGenerationReqInput:
    """How to stop."""

    mode: str = "abort"


@dataclass
class ContinueGenerationReqInput:
    """To go on."""

    torch_empty_cache: bool = True


@dataclass
class BeginWeightUpdateReqInput:
    """Which runners take weights."""

    selector: str = "all"


@dataclass
class EndWeightUpdateReqInput:
    """Nothing more."""


@dataclass
class UpdateWeightsFromTensorReqInput:
    """Weights, one payload a worker."""

    serialized_named_tensors: list[bytes]
    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None


@dataclass
class ReleaseMemoryOccupationReqInput:
    """Kinds of memory; None: all."""

    tags: list[str] | None = None


@dataclass
class ResumeMemoryOccupationReqInput:
    """Kinds of memory; None: all."""

    tags: list[str] | None = None


@dataclass
class FakeManager:
    """What ``Engine.tokenizer_manager`` offers, over a scheduler."""

    scheduler: FakeScheduler
    flushed: int = 0
    telling: set[asyncio.Future[None]] = field(default_factory=set)

    async def generate_request(
        self, obj: GenerateReqInput, request: Any = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Events of a response."""
        async for event in self.scheduler.generate(vars(obj)):
            yield event

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """Tell the scheduler, without waiting."""
        telling = asyncio.ensure_future(self.scheduler.abort(rid, everything=abort_all))
        self.telling.add(telling)
        telling.add_done_callback(self.telling.discard)

    async def pause_generation(self, obj: PauseGenerationReqInput) -> None:
        """See the scheduler."""
        await self.scheduler.pause(obj.mode)

    async def continue_generation(self, obj: ContinueGenerationReqInput) -> None:
        """See the scheduler."""
        await self.scheduler.go_on()

    async def begin_weight_update(
        self, obj: BeginWeightUpdateReqInput, request: Any = None
    ) -> tuple[bool, str]:
        """Success, and a message."""
        return await self.scheduler.begin_update()

    async def end_weight_update(
        self, obj: EndWeightUpdateReqInput, request: Any = None
    ) -> tuple[bool, str]:
        """Success, and a message."""
        return await self.scheduler.end_update()

    async def update_weights_from_tensor(
        self, obj: UpdateWeightsFromTensorReqInput, request: Any = None
    ) -> tuple[bool, str]:
        """Success, and a message."""
        (payload,) = obj.serialized_named_tensors
        part = dict(pickle.loads(payload))
        self.flushed += obj.flush_cache
        return await self.scheduler.take(part, obj.weight_version)

    async def flush_cache(self, timeout_s: float | None = None) -> Any:
        """Whether nothing ran."""
        busy = bool(self.scheduler.drawing or (self.scheduler.running and self.scheduler.jobs))
        return SimpleNamespace(success=not busy, message="")

    async def release_memory_occupation(
        self, obj: ReleaseMemoryOccupationReqInput, request: Any = None
    ) -> None:
        """See the scheduler."""
        await self.scheduler.release(obj.tags)

    async def resume_memory_occupation(
        self, obj: ResumeMemoryOccupationReqInput, request: Any = None
    ) -> None:
        """See the scheduler."""
        await self.scheduler.reoccupy(obj.tags)

    async def get_loads(self) -> list[Any]:
        """One snapshot a scheduler."""
        running = len(self.scheduler.jobs)
        used = sum(len(job.prompt) + len(job.ids) for job in self.scheduler.jobs.values())
        return [
            SimpleNamespace(
                num_running_reqs=running,
                num_waiting_reqs=0,
                num_used_tokens=used,
                max_total_num_tokens=4096,
                gen_throughput=1.0,
            )
        ]


class FakeEngine:
    """``sglang.Engine``: keyword arguments are those of its ``ServerArgs``."""

    def __init__(self, made: Callable[[str], tuple[RolloutEngine, Any]], **arguments: Any) -> None:
        assert not arguments.get("skip_tokenizer_init"), "stop strings need a tokenizer"
        assert arguments["tp_size"] == 1, "the fake has one worker"
        assert arguments["load_format"] == "dummy"
        engine, decode = made(arguments["model_path"])
        scheduler = FakeScheduler(
            engine, decode, incremental=bool(arguments.get("incremental_streaming_output"))
        )
        self.server_args, self.tokenizer_manager = (
            SimpleNamespace(**arguments),
            FakeManager(scheduler),
        )

    def shutdown(self) -> None:
        """End it."""
        self.tokenizer_manager.scheduler.engine.close()


def serialize(obj: Any, output_str: bool = False) -> bytes:
    """``MultiprocessingSerializer.serialize``: tensors of CPU memory go by shared memory."""
    return bytes(ForkingPickler.dumps(obj))


def install(made: Callable[[str], tuple[RolloutEngine, Any]]) -> None:
    """Put a package ``sglang`` into this process, whose engines draw with ``made`` ones.

    ``made`` gives an engine with some weights, and what decodes its ids, of a model's folder.
    """

    def engine(**arguments: Any) -> FakeEngine:
        return FakeEngine(made, **arguments)

    modules: dict[str, dict[str, Any]] = {
        "sglang": {"Engine": engine},
        "sglang.srt": {},
        "sglang.srt.entrypoints": {},
        "sglang.srt.entrypoints.engine": {"Engine": engine},
        "sglang.srt.managers": {},
        "sglang.srt.managers.io_struct": dict(globals()),
        "sglang.srt.utils": {"MultiprocessingSerializer": SimpleNamespace(serialize=serialize)},
    }
    for name, content in modules.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update({k: v for k, v in content.items() if not k.startswith("__")})
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
