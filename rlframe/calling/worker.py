"""One process with the engines of its roles. Clusters start it; engines never see a cluster."""

from __future__ import annotations

import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import torch

from rlframe.asking import MethodError
from rlframe.batching.batch import Batch
from rlframe.batching.plan import UpdatePlan, sequence_lengths
from rlframe.calling.protocol import ONE_TO_ALL, Protocol, protocol_of
from rlframe.config import Selected
from rlframe.errors import EngineError, MethodFault, RlframeError, WorkerError
from rlframe.interfaces.model import EngineSpec
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.interfaces.strategy import RankInfo
from rlframe.interfaces.transfer import Produced, TransferEngine
from rlframe.requests import Completion, Request
from rlframe.timeline import Busy, SpanLog

__all__ = ["Worker", "declared_protocol"]


def declared_protocol(engine: type, method: str) -> Protocol:
    """What a class, or one that it derives from, declares for a method; ONE_TO_ALL otherwise."""
    for base in engine.__mro__:
        if hasattr(vars(base).get(method), "__protocol__"):
            return protocol_of(vars(base)[method])
    return ONE_TO_ALL


class Worker:
    """Holds one engine a role and calls them.

    A result that is a set of columns is stored in the transfer engine; its handles are returned.
    An exception that is not an ``RlframeError``, or that a method's own code raised, becomes a
    ``WorkerError``, a ``MethodFault`` in the second case.
    """

    def __init__(self, rank: RankInfo, transfer: TransferEngine) -> None:
        self.rank, self.transfer = rank, transfer
        self.engines: dict[str, Any] = {}
        self.spans = SpanLog()
        """When what ran here."""
        self._hosted: set[str] = set()

    def start(self) -> None:
        """Seeds and threads of this process."""
        random.seed(self.rank.seed)
        np.random.seed(self.rank.seed % 2**32)
        torch.manual_seed(self.rank.seed)
        if self.rank.threads:
            torch.set_num_threads(self.rank.threads)

    def add_model(self, role: str, spec: EngineSpec, engine: Selected) -> None:
        """Set up a model role."""
        self._guard(role, "setup", lambda: self._add_model(role, spec, engine))

    def add_rollout(self, role: str, spec: RolloutSpec, engine: Selected) -> None:
        """Set up a rollout engine."""
        self._guard(role, "setup", lambda: self._add_rollout(role, spec, engine))

    def host(self, name: str, make: Callable[[], Any]) -> None:
        """Hold any object under a role's name."""
        self.engines[name] = made = self._guard(name, "start", make)
        self._hosted.add(name)
        if hasattr(made, "watch"):
            made.watch(self.spans, name)

    def call(self, role: str, method: str, *args: Any) -> Any:
        """Call one engine's method; columns come back as they are."""
        function = getattr(self.engines[role], method)
        if role in self._hosted:  # it notes itself what it does: a call may be but a question
            return self._guard(role, method, lambda: function(*args))
        with self.spans.span(role, method, _tokens(args)):
            return self._guard(role, method, lambda: function(*args))

    def run(self, role: str, method: str, *args: Any) -> Any:
        """Call one engine's method; columns come back as handles by name."""
        outcome = self.call(role, method, *args)
        if isinstance(outcome, Produced):
            return outcome.value, self.transfer.put(outcome.columns)
        if self.protocol(role, method).combine == "concat":
            return self.transfer.put(outcome)
        return outcome

    def protocol(self, role: str, method: str) -> Protocol:
        """What the engine's class declares for a method."""
        return declared_protocol(type(self.engines[role]), method)

    def close(self) -> None:
        """Close every engine."""
        for engine in reversed(self.engines.values()):
            if hasattr(engine, "close"):
                engine.close()
        self.engines.clear()

    def _add_model(self, role: str, spec: EngineSpec, engine: Selected) -> None:
        made = engine.load()(self.rank)
        made.setup(spec)
        self._register(role, made)

    def _add_rollout(self, role: str, spec: RolloutSpec, engine: Selected) -> None:
        made = engine.load()(engine.config, spec)
        made.rank = self.rank
        made.generate = _noted(made, self.spans.busy(role, "generate"))
        self._register(role, made)

    def _register(self, role: str, engine: Any) -> None:
        self.engines[role] = engine
        for one in self.engines.values():
            one.peers = self.engines

    def _guard(self, role: str, method: str, call: Any) -> Any:
        try:
            return call()
        except MethodError as error:
            what = f"{method}: {error.said}"
            raise self._failed(role, what, error.__cause__ or error, MethodFault) from error
        except RlframeError:
            raise
        except Exception as error:
            what = f"{method}: {type(error).__name__}: {error}"
            raise self._failed(role, what, error) from error

    def _failed(
        self, role: str, what: str, error: BaseException, kind: type[WorkerError] = WorkerError
    ) -> WorkerError:
        remote = "".join(traceback.format_exception(error))
        return kind(role, self.rank.rank, self.rank.host, what, remote)


def _noted(engine: Any, busy: Busy) -> Callable[[Request], Awaitable[Completion]]:
    """The engine's ``generate``, its open requests noted as one stretch of work.

    Whatever it raises is the engine's: nobody takes it for a fault of the environment.
    """
    plain = engine.generate

    async def generate(request: Request) -> Completion:
        with busy.work():
            try:
                done: Completion = await plain(request)
            except RlframeError:
                raise
            except Exception as error:
                what = f"{type(engine).__name__}: {type(error).__name__}: {error}"
                raise EngineError(what) from error
            busy.made(len(done.token_ids), max(done.versions, default=-1))
            return done

    return generate


def _tokens(args: Sequence[Any]) -> int:
    """Prompt and response tokens that a call works on, each time that it does."""
    batch = next((arg for arg in args if isinstance(arg, Batch)), None)
    if batch is None or "prompt_ids" not in batch or "response_ids" not in batch:
        return 0
    lengths = sequence_lengths(batch)
    plan = next((arg for arg in args if isinstance(arg, UpdatePlan)), None)
    if plan is None:
        return int(lengths.sum())
    micros = (rows for step in plan.minibatches for ranks in step.micros for rows in ranks)
    return sum(int(lengths[rows].sum()) for rows in micros)
