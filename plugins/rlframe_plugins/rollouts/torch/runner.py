"""Continuous batching: who enters, one token for all, who leaves."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rlframe.errors import RolloutError
from rlframe.requests import Completion
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.decoder import Decoder
from rlframe_plugins.rollouts.torch.rows import Rows, Running
from rlframe_plugins.rollouts.torch.sampling import Draw, sample, uniforms

__all__ = ["TorchRunner"]

_PREFILL_TOKENS = 4096
_PREFILL_WASTE = 1.25
"""Prompts run together unless padding makes a chunk longer than this times its tokens."""

Ended = list[tuple[Running, Completion]]


class TorchRunner:
    """Sequences that wait, sequences in rows, and the cache that these fill.

    With ``alone`` each one is prefilled and decoded by itself at its exact length, so that its
    tokens and log-probabilities are bit-equal whatever else runs.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, max_batch: int, max_kv_tokens: int, alone: bool
    ) -> None:
        self._decoder, self._cache, self._alone = decoder, cache, alone
        self._max_batch, self._max_kv_tokens = max_batch, max_kv_tokens
        self._rows = Rows()
        self._waiting: deque[Running] = deque()
        self._draw: Draw | None = None
        self.version = -1
        self.seconds = {"prefill_s": 0.0, "decode_s": 0.0, "sample_s": 0.0}

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._rows.sequences)

    def add(self, handle: Running) -> None:
        """Queue a sequence."""
        self._waiting.append(handle)

    def drop(self, handle: Running) -> Completion:
        """Forget a sequence; returns what it has drawn."""
        if handle.row >= 0:
            self._leave(handle.row)
        elif handle in self._waiting:
            self._waiting.remove(handle)
        return handle.completion("abort")

    def reset(self) -> None:
        """Forget all sequences and the cache, which may hold non-finite numbers."""
        self._waiting.clear()
        self._rows = Rows()
        self._draw = None
        self._cache.release()

    def release(self) -> None:
        """Give the cache back; running sequences wait to be prefilled again, in their order."""
        for row in range(len(self._rows) - 1, -1, -1):
            sequence = self._rows.sequences[row]
            self._leave(row)
            self._waiting.appendleft(sequence)
        self._cache.release()

    @torch.inference_mode()
    def step(self) -> Ended:
        """Let sequences enter, with their first token, then draw one token for every row."""
        ended = self._enter()
        if self._rows.sequences:
            ended += self._advance()
        return ended

    # --- entering -----------------------------------------------------------------------------

    def _enter(self) -> Ended:
        taken = self._admit()
        if not taken:
            return []
        start = time.perf_counter()
        before = len(self._rows)
        rows, width = before + len(taken), max(s.need for s in (*self._rows.sequences, *taken))
        used = int(self._rows.position[:before].max()) if before else 0
        self._cache.reserve(rows, width, (before, used), self._decoder.weights.embed)
        donors = self._donors()
        for sequence in taken:
            self._rows.add(sequence)
        self._draw = None
        fresh: dict[tuple[int, ...], list[Running]] = {}
        for sequence in taken:
            donor = donors.get(hash(sequence.context)) if not sequence.tokens else None
            if donor and donor.request.prompt_ids == sequence.request.prompt_ids:
                length = len(sequence.request.prompt_ids)
                self._cache.move(donor.row, sequence.row, length)
                sequence.hidden, sequence.prefilled = donor.hidden, self.version
            else:
                fresh.setdefault(sequence.context, []).append(sequence)
        for chunk in self._chunks(fresh):
            self._prefill(chunk)
        self.seconds["prefill_s"] += time.perf_counter() - start
        span = slice(before, len(self._rows))
        hidden = torch.cat([s.hidden for s in self._rows.sequences[span]], 1)
        return self._finish(self._sample(hidden, span))

    def _admit(self) -> list[Running]:
        """Those that wait longest, as far as rows and cache go."""
        taken: list[Running] = []
        widest = max((s.need for s in self._rows.sequences), default=0)
        while self._waiting and len(self._rows) + len(taken) < self._max_batch:
            widest = max(widest, self._waiting[0].need)
            if (len(self._rows) + len(taken) + 1) * widest > self._max_kv_tokens:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _donors(self) -> dict[int, Running]:
        """Running sequences whose prompt lies in the cache under the present weights."""
        return {
            hash(s.request.prompt_ids): s
            for s in self._rows.sequences
            if s.hidden is not None and s.prefilled == self.version
        }

    def _chunks(
        self, fresh: dict[tuple[int, ...], list[Running]]
    ) -> Iterator[dict[tuple[int, ...], list[Running]]]:
        """Contexts of like length, at most so many padded tokens together."""
        chunk: dict[tuple[int, ...], list[Running]] = {}
        tokens = 0
        for context in sorted(fresh, key=len):
            padded = len(context) * (len(chunk) + 1)
            wasteful = padded > _PREFILL_WASTE * (tokens + len(context))
            if chunk and (self._alone or wasteful or padded > _PREFILL_TOKENS):
                yield chunk
                chunk, tokens = {}, 0
            chunk[context] = fresh[context]
            tokens += len(context)
        if chunk:
            yield chunk

    def _prefill(self, chunk: dict[tuple[int, ...], list[Running]]) -> None:
        groups = list(chunk.values())
        rows = [[s.row for s in group] for group in groups]
        hidden = self._decoder.prefill(list(chunk), self._cache, rows)
        for index, group in enumerate(groups):
            for sequence in group:
                sequence.hidden = hidden[:, index : index + 1]
                sequence.prefilled = -1 if sequence.tokens else self.version

    # --- one token ----------------------------------------------------------------------------

    def _advance(self) -> Ended:
        count = len(self._rows)
        spans = [slice(i, i + 1) for i in range(count)] if self._alone else [slice(0, count)]
        ended: list[tuple[int, bool]] = []
        for span in spans:
            start = time.perf_counter()
            device = self._decoder.weights.embed.device
            tokens = torch.from_numpy(self._rows.last[span]).to(device)
            positions = torch.from_numpy(self._rows.position[span]).to(device)
            width = int(self._rows.position[span].max()) + 1
            hidden = self._decoder.decode(tokens, positions, width, self._cache, span.start)
            self._rows.position[span] += 1
            self.seconds["decode_s"] += time.perf_counter() - start
            ended += self._sample(hidden, span)
        return self._finish(ended)

    def _sample(self, hidden: Tensor, span: slice) -> list[tuple[int, bool]]:
        """Draw and record a token for each row of ``span``; returns rows that end, and how."""
        start = time.perf_counter()
        spans = [slice(i, i + 1) for i in range(span.start, span.stop)] if self._alone else [span]
        ended: list[tuple[int, bool]] = []
        for one in spans:
            part = hidden[:, one.start - span.start : one.stop - span.start]
            logits = self._decoder.logits(part)
            ids, columns = self._rows.banned(one)
            if ids:
                logits[ids, columns] = -torch.inf
            noise = uniforms(self._rows.seed[one], self._rows.count[one])
            drawn, logprobs = sample(logits, self._draw_of(one), torch.from_numpy(noise))
            tokens_B, logprobs_B = drawn.cpu().numpy(), logprobs.cpu().numpy()
            if not np.isfinite(logprobs_B).all():
                raise RolloutError(
                    f"logits of weight version {self.version} are not finite: the last update "
                    "broke the weights; look at its gradient norm and lower optim.lr"
                )
            rows, stopped = self._rows.record(one, tokens_B, logprobs_B, self.version)
            ended += zip(rows.tolist(), stopped.tolist(), strict=True)
        self.seconds["sample_s"] += time.perf_counter() - start
        return ended

    def _draw_of(self, span: slice) -> Draw:
        whole = span == slice(0, len(self._rows))
        if whole and self._draw is not None:
            return self._draw
        settings = [s.request.sampling for s in self._rows.sequences[span]]
        draw = Draw.of(settings, self._decoder.weights.embed.device)
        if whole:
            self._draw = draw
        return draw

    # --- leaving ------------------------------------------------------------------------------

    def _finish(self, ended: list[tuple[int, bool]]) -> Ended:
        done: Ended = []
        for row, stopped in sorted(ended, reverse=True):
            sequence = self._leave(row)
            done.append((sequence, sequence.completion("stop" if stopped else "length")))
        return done

    def _leave(self, row: int) -> Running:
        """Take a sequence out; the last row takes its place, in the cache as well."""
        sequence = self._rows.store(row)
        moved = self._rows.remove(row)
        if moved != row:
            self._cache.move(moved, row, int(self._rows.position[row]))
        self._draw = None
        return sequence
