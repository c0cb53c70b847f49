"""Continuous batching: what enters is prefilled, then one token for all, then some leave."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from rlframe.errors import RolloutError
from rlframe.requests import Completion
from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.rows import Running
from rlframe_plugins.rollouts.torch.sampling import Draw, sample, uniforms
from rlframe_plugins.rollouts.torch.scheduler import BlockScheduler

__all__ = ["TorchRunner"]

_PREFILL_TOKENS = 4096
_PREFILL_WASTE = 1.25
"""Texts run together unless padding makes a chunk longer than this times its tokens."""

Ended = list[tuple[Running, Completion]]


class TorchRunner:
    """The scheduler's decisions carried out by the decoder, over the cache.

    With ``alone`` each sequence is prefilled and decoded by itself at its exact length, so that its
    tokens and log-probabilities are bit-equal whatever else runs.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, pool: BlockPool, max_batch: int, alone: bool
    ) -> None:
        self._decoder, self._cache, self._alone = decoder, cache, alone
        self._scheduler = BlockScheduler(pool, max_batch, alone)
        self._draw: tuple[int, Draw] | None = None
        self._version = -1
        self._counters = dict.fromkeys(
            ("prefill_s", "decode_s", "sample_s", "prefill_tokens", "running_s", "waiting_s"), 0.0
        )

    @property
    def version(self) -> int:
        """Of the weights; setting it makes all that is cached useless for what enters later."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self._scheduler.new_weights()

    @property
    def counters(self) -> dict[str, float]:
        """Seconds of each part, tokens, sequences times seconds; all since the start."""
        return {**self._counters, **self._scheduler.counters}

    @property
    def gauges(self) -> dict[str, float]:
        """Sequences, and tokens of the cache that are in use, kept and possible, now."""
        pool = self._scheduler.pool
        blocks = {
            "kv_used_tokens": pool.used,
            "kv_idle_tokens": pool.idle,
            "kv_host_tokens": pool.stored,
            "kv_total_tokens": pool.limit,
        }
        return {
            "running": float(len(self._scheduler.rows)),
            "waiting": float(len(self._scheduler.waiting)),
            **{name: float(count * BLOCK_TOKENS) for name, count in blocks.items()},
        }

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._scheduler.waiting or self._scheduler.rows.sequences)

    def add(self, handle: Running) -> None:
        """Queue a sequence."""
        self._scheduler.add(handle)

    def drop(self, handle: Running) -> Completion:
        """Forget a sequence; returns what it has drawn."""
        self._scheduler.drop(handle)
        return handle.completion("abort")

    def reset(self) -> None:
        """Forget all sequences and the cache, which may hold non-finite numbers."""
        self._scheduler.reset()
        self._cache.release(host=True)

    def release(self, keep: bool) -> None:
        """Give the cache back; running sequences wait to go on, in their order.

        With ``keep`` the host keeps what it has room for.
        """
        self._scheduler.send_back()
        if not keep:
            self._scheduler.pool.forget()
        self._scheduler.pool.vacate()
        self._move()
        self._cache.release(host=not keep)

    @torch.inference_mode()
    def step(self) -> Ended:
        """Let sequences enter, with their first token, then draw one token for every row."""
        start, scheduler = time.perf_counter(), self._scheduler
        ended = self._enter()
        scheduler.make_room()
        rows, waiting = len(scheduler.rows), len(scheduler.waiting)
        if rows:
            ended += self._advance()
        spent = time.perf_counter() - start
        self._counters["running_s"] += spent * rows
        self._counters["waiting_s"] += spent * waiting
        return ended

    # --- entering -----------------------------------------------------------------------------

    def _enter(self) -> Ended:
        before = len(self._scheduler.rows)
        entered = self._scheduler.admit()
        if not entered:
            return []
        start = time.perf_counter()
        self._reserve()
        states: dict[Running, Tensor] = {}
        for chunk in self._chunks([s for s, donor in entered if donor is None]):
            self._prefill(chunk, states)
        self._fork([(s, donor) for s, donor in entered if donor is not None])
        for sequence, donor in entered:
            if donor is not None:
                assert donor.hidden is not None, "an equal prompt is prefilled first"
                states[sequence] = donor.hidden
            if not sequence.tokens:
                sequence.hidden = states[sequence]
        self._counters["prefill_s"] += time.perf_counter() - start
        hidden = torch.cat([states[sequence] for sequence, _ in entered], 1)
        return self._finish(self._sample(hidden, slice(before, len(self._scheduler.rows))))

    def _chunks(self, fresh: Sequence[Running]) -> Iterator[list[Running]]:
        """Sequences of like length, at most so many padded tokens together.

        Who takes over what another one computes now begins later than that one, and comes later.
        """
        chunk: list[Running] = []
        tokens = longest = 0
        lengths = {s: len(s.context) - s.start for s in fresh}
        for sequence in sorted(fresh, key=lambda s: (s.start, lengths[s])):
            longest = max(longest, lengths[sequence])
            padded, real = longest * (len(chunk) + 1), tokens + lengths[sequence]
            wasteful = padded > _PREFILL_WASTE * real or padded > _PREFILL_TOKENS
            if chunk and (self._alone or wasteful):
                yield chunk
                chunk, real, longest = [], lengths[sequence], lengths[sequence]
            chunk.append(sequence)
            tokens = real
        if chunk:
            yield chunk

    def _prefill(self, chunk: list[Running], states: dict[Running, Tensor]) -> None:
        texts = [s.context[s.start :] for s in chunk]
        self._counters["prefill_tokens"] += sum(map(len, texts))
        starts, tables = [s.start for s in chunk], [s.blocks for s in chunk]
        hidden = self._decoder.prefill(texts, starts, tables, self._cache)
        for index, sequence in enumerate(chunk):
            states[sequence] = hidden[:, index : index + 1]
            if not sequence.tokens:
                sequence.hidden = states[sequence]

    def _fork(self, pairs: Sequence[tuple[Running, Running]]) -> None:
        """Copy the blocks of equal prompts that are not shared."""
        copies = [
            copy
            for sequence, donor in pairs
            for copy in zip(
                donor.blocks, sequence.blocks[: blocks_for(sequence.start)], strict=False
            )
            if copy[0] != copy[1]
        ]
        if copies:
            self._cache.copy([source for source, _ in copies], [target for _, target in copies])

    def _reserve(self) -> None:
        """Make the blocks that were handed out exist, with what they are to hold."""
        pool = self._scheduler.pool
        self._cache.reserve(pool.made, pool.limit, self._decoder.weights.embed)
        self._move()

    def _move(self) -> None:
        """Bring blocks from the host and save others there."""
        pool = self._scheduler.pool
        for what, moves in itertools.groupby(pool.take_moves(), key=lambda move: move[0]):
            # A place that is written to twice keeps the last.
            last = {target: source for _, source, target in moves}
            sources, targets = list(last.values()), list(last)
            if what == "store":
                self._cache.store(sources, targets, pool.host_limit)
            else:
                self._cache.fetch(sources, targets)

    # --- one token ----------------------------------------------------------------------------

    def _advance(self) -> Ended:
        rows = self._scheduler.rows
        spans = (
            [slice(i, i + 1) for i in range(len(rows))] if self._alone else [slice(0, len(rows))]
        )
        ended: list[tuple[int, bool]] = []
        start = time.perf_counter()
        self._reserve()
        copies = {} if self._alone else self._scheduler.compact()
        if copies:
            self._cache.copy(list(copies), list(copies.values()))
        for span in spans:
            hidden = self._decoder.decode(
                rows.last[span], rows.position[span], rows.tables[span], self._cache, self._alone
            )
            rows.position[span] += 1
            self._counters["decode_s"] += time.perf_counter() - start
            ended += self._sample(hidden, span)
            start = time.perf_counter()
        return self._finish(ended)

    def _sample(self, hidden: Tensor, span: slice) -> list[tuple[int, bool]]:
        """Draw and record a token for each row of ``span``; returns rows that end, and how."""
        start, rows = time.perf_counter(), self._scheduler.rows
        spans = [slice(i, i + 1) for i in range(span.start, span.stop)] if self._alone else [span]
        ended: list[tuple[int, bool]] = []
        for one in spans:
            part = hidden[:, one.start - span.start : one.stop - span.start]
            logits = self._decoder.logits(part)
            ids, columns = rows.banned(one)
            if ids:
                logits[ids, columns] = -torch.inf
            noise = uniforms(rows.seed[one], rows.count[one])
            drawn, logprobs = sample(logits, self._draw_of(one), torch.from_numpy(noise))
            tokens_B, logprobs_B = drawn.cpu().numpy(), logprobs.cpu().numpy()
            if not np.isfinite(logprobs_B).all():
                raise RolloutError(
                    f"logits of weight version {self.version} are not finite: the last update "
                    "broke the weights; look at its gradient norm and lower optim.lr"
                )
            which, stopped = rows.record(one, tokens_B, logprobs_B, self.version)
            ended += zip(which.tolist(), stopped.tolist(), strict=True)
        self._counters["sample_s"] += time.perf_counter() - start
        return ended

    def _draw_of(self, span: slice) -> Draw:
        rows = self._scheduler.rows
        whole = span == slice(0, len(rows))
        if whole and self._draw is not None and self._draw[0] == rows.changes:
            return self._draw[1]
        settings = [s.request.sampling for s in rows.sequences[span]]
        draw = Draw.of(settings, self._decoder.weights.embed.device)
        if whole:
            self._draw = rows.changes, draw
        return draw

    # --- leaving ------------------------------------------------------------------------------

    def _finish(self, ended: list[tuple[int, bool]]) -> Ended:
        done: Ended = []
        for row, stopped in sorted(ended, reverse=True):
            sequence = self._scheduler.leave(row)
            done.append((sequence, sequence.completion("stop" if stopped else "length")))
        return done
