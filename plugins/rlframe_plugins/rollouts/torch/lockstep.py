"""One scheduler for the ranks of a generation replica.

The leading rank owns requests, rows and sampling. Each thing that it does to decoder or cache it
says first; followers do the same on a thread of their own, and wait without spinning when there is
nothing to do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.errors import RolloutError
from rlframe_plugins.rollouts.torch.arch import Arch
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.team import Team
from rlframe_plugins.rollouts.torch.weights import Weights

__all__ = ["Follower", "LeadingCache", "LeadingDecoder"]

_END_S = 10.0
"""Longest wait for a follower's thread at its end, seconds."""


@contextmanager
def _said(team: Team, what: str, *args: Any) -> Iterator[None]:
    """Say it, then do it; a rank that said what it cannot do is of no use to the others."""
    team.tell(what, *args)
    try:
        yield
    except BaseException as error:
        team.fail(error)
        raise


class LeadingCache(KVCache):
    """The leader's part of the cache; followers keep theirs alike."""

    def __init__(self, team: Team, layers: int, kv_heads: int, head_dim: int) -> None:
        super().__init__(layers, kv_heads, head_dim)
        self._team = team

    def reserve(self, blocks: int, limit: int, like: Tensor) -> None:
        """See :class:`KVCache`."""
        if blocks > self.blocks:
            with _said(self._team, "reserve", blocks, limit):
                super().reserve(blocks, limit, like)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """See :class:`KVCache`."""
        with _said(self._team, "copy", sources, targets):
            super().copy(sources, targets)

    def store(self, blocks: Sequence[int], slots: Sequence[int], limit: int) -> None:
        """See :class:`KVCache`."""
        with _said(self._team, "store", blocks, slots, limit):
            super().store(blocks, slots, limit)

    def fetch(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """See :class:`KVCache`."""
        with _said(self._team, "fetch", slots, blocks):
            super().fetch(slots, blocks)

    def release(self, host: bool) -> None:
        """See :class:`KVCache`; every rank has, when it returns."""
        if self._team.broken:
            super().release(host)
            return
        with _said(self._team, "release", host):
            super().release(host)
            self._team.meet()


class LeadingDecoder(Decoder):
    """The leader's part of the model; its answers are whole."""

    team: Team

    def __init__(self, config: Any, arch: Arch, vocab: int, team: Team) -> None:
        super().__init__(config, arch, vocab, team)
        self.team = team

    def use(self, weights: Weights | None, version: int = -1) -> None:
        """See :class:`Decoder`."""
        with _said(self.team, "use", version if weights is not None else None):
            super().use(weights, version)

    def prefill(
        self,
        texts: Sequence[Sequence[int]],
        starts: Sequence[int],
        tables: Sequence[Sequence[int]],
        cache: KVCache,
    ) -> Tensor:
        """See :class:`Decoder`."""
        plain = [list(t) for t in texts], list(starts), [list(t) for t in tables]
        with _said(self.team, "prefill", *plain):
            return super().prefill(texts, starts, tables, cache)

    def decode(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        tables: NDArray[np.int64],
        cache: KVCache,
        exact: bool = False,
    ) -> Tensor:
        """See :class:`Decoder`."""
        used = tables[:, : int(positions.max()) // BLOCK_TOKENS + 1].astype(np.int32)
        with _said(self.team, "decode", tokens, positions, used, exact):
            return super().decode(tokens, positions, tables, cache, exact)

    def logits(self, hidden: Tensor) -> Tensor:
        """See :class:`Decoder`; of the whole vocabulary."""
        with _said(self.team, "logits", hidden.shape[1]):
            hidden = hidden.t().contiguous()
            self.team.share(hidden)
            return super().logits(hidden.t())


class Follower:
    """Does on this rank what the leader says, until that ends.

    Weights come by :meth:`load` from the worker's own thread; they are used from the moment between
    two steps at which the leader takes the same version.
    """

    def __init__(self, team: Team, decoder: Decoder, cache: KVCache, timeout_s: float) -> None:
        self._team, self._decoder, self._cache = team, decoder, cache
        self._timeout_s = timeout_s
        self._coming: deque[tuple[int, Weights]] = deque()
        self._changed = threading.Condition()
        self.version = -1
        self.failure = ""
        self._thread = threading.Thread(target=self._run, name="rlframe-follower", daemon=True)
        self._thread.start()

    def load(self, version: int, weights: Weights) -> None:
        """Have these weights ready. Raises RolloutError where the replica is broken."""
        if self.failure:
            raise RolloutError(self.failure)
        with self._changed:
            self._coming.append((version, weights))
            self.version = version
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until what was loaded is in use. Raises RolloutError where it is not in time."""
        with self._changed:
            if not self._changed.wait_for(self._idle, self._timeout_s) or self.failure:
                raise RolloutError(self.failure or "the leader did not take the weights in time")

    def close(self) -> None:
        """Wait for the leader's end, but not for ever."""
        self._thread.join(_END_S)

    # --- the thread ---------------------------------------------------------------------------

    @torch.inference_mode()
    def _run(self) -> None:
        acts: dict[str, Callable[..., Any]] = {
            "use": self._use,
            "reserve": self._reserve,
            "copy": self._cache.copy,
            "store": self._cache.store,
            "fetch": self._cache.fetch,
            "release": self._release,
            "prefill": self._prefill,
            "decode": self._decode,
            "logits": self._logits,
        }
        try:
            while True:
                what, args = self._team.hear()
                if what == "end":
                    self._team.close()
                    return
                acts[what](*args)
        except Exception as error:  # noqa: BLE001 - told to the leader, and by the next load
            with self._changed:
                self.failure = str(error) or type(error).__name__
                self._changed.notify_all()
            self._team.fail(error)

    def _use(self, version: int | None) -> None:
        if version is None:
            self._decoder.use(None)
            return
        with self._changed:
            while not (self._coming and self._coming[0][0] == version):
                if self._coming:
                    self._coming.popleft()
                elif not self._changed.wait(self._timeout_s):
                    raise RolloutError(
                        f"weight version {version} did not reach rank "
                        f"{self._team.members[self._team.index]} in {self._timeout_s:g} s "
                        "(rollout.step_timeout_s)"
                    )
            self._decoder.use(self._coming.popleft()[1])
            self._changed.notify_all()

    def _idle(self) -> bool:
        return not self._coming or bool(self.failure)

    def _reserve(self, blocks: int, limit: int) -> None:
        self._cache.reserve(blocks, limit, self._decoder.weights.embed)

    def _release(self, host: bool) -> None:
        self._cache.release(host)
        self._team.meet()

    def _prefill(self, texts: Any, starts: list[int], tables: list[list[int]]) -> None:
        self._decoder.prefill(texts, starts, tables, self._cache)

    def _decode(self, tokens: Any, positions: Any, tables: Any, exact: bool) -> None:
        self._decoder.decode(tokens, positions, tables.astype(np.int64), self._cache, exact)

    def _logits(self, count: int) -> None:
        embed = self._decoder.weights.embed
        hidden = embed.new_empty((count, self._decoder.arch.hidden))
        self._team.share(hidden)
        self._decoder.logits(hidden.t())
