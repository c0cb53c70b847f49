"""Who runs: requests that wait, rows that run, and the blocks of cache that these fill."""

from __future__ import annotations

from collections import deque

from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from rlframe_plugins.rollouts.torch.rows import Rows, Running

__all__ = ["BlockScheduler"]

_SHARED_FROM = 4
"""Blocks of an equal prompt from which on they are shared; fewer are read faster as copies."""
_LOOSE = 1.3
"""Times as many blocks as are used that they may be spread over; a step reads them all."""
_SESSIONS = 65536
"""Ids of sessions that are remembered, to see whether any comes back."""


class BlockScheduler:
    """First come, first served, as far as rows and blocks go.

    A sequence enters with blocks for the tokens that it has, and takes another one whenever they
    are full. Where none is left, the sequence that entered last makes room: it waits, before all
    others, and is prefilled again. With ``alone`` a sequence enters with all that it may come to
    need, and takes over no keys but those of an equal prompt, so its bits depend on nobody.
    """

    def __init__(self, pool: BlockPool, max_batch: int, alone: bool) -> None:
        self.pool, self.rows = pool, Rows()
        self.waiting: deque[Running] = deque()
        self._max_batch, self._alone = max_batch, alone
        self._entries = 0
        self._sessions: set[str] = set()
        self.counters = {"prefix_hit_tokens": 0.0, "preemptions": 0.0}

    def add(self, sequence: Running) -> None:
        """Queue a sequence; one of a session that was here before shows that sessions return."""
        if sequence.request.session_id in self._sessions:
            self.pool.patient = True
        self.waiting.append(sequence)

    def drop(self, sequence: Running) -> None:
        """Forget a sequence, where it still is."""
        if sequence.row >= 0:
            self.leave(sequence.row)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def reset(self) -> None:
        """Forget everything."""
        self.waiting.clear()
        self.rows.clear()
        self.pool = BlockPool(self.pool.limit, self.pool.host_limit)

    def new_weights(self) -> None:
        """What is cached is of no more use, but to the sequences that run."""
        self.pool.forget()
        self._sessions.clear()
        for sequence in self.rows.sequences:
            sequence.pure, sequence.hidden = False, None

    # --- entering -----------------------------------------------------------------------------

    def admit(self) -> list[tuple[Running, Running | None]]:
        """Sequences that enter now, each with the one whose equal prompt it takes over, if any."""
        if not self.waiting or self.pool.available <= len(self.rows):
            return []
        donors = {s.request.prompt_ids: s for s in self.rows.sequences if s.hidden is not None}
        entered: list[tuple[Running, Running | None]] = []
        while self.waiting and len(self.rows) < self._max_batch:
            sequence = self.waiting[0]
            context = sequence.context
            donor = donors.get(context)
            if not self._seat(sequence, context, donor):
                break
            self.waiting.popleft()
            self.rows.add(sequence)
            if not sequence.tokens:
                donors.setdefault(context, sequence)
            entered.append((sequence, donor))
        return entered

    def _seat(self, sequence: Running, context: tuple[int, ...], donor: Running | None) -> bool:
        """Take blocks for a context; False where they are too few."""
        pool, known = self.pool, []
        kept = donor.blocks[: len(context) // BLOCK_TOKENS] if donor else []
        kept = kept if len(kept) >= _SHARED_FROM else []
        if donor is None and not self._alone:
            known = pool.match(context[:-1])  # the last token's state is needed
        wanted = blocks_for(sequence.need if self._alone else len(context))
        # Each row that runs may open a block before anything ends.
        spare = 0 if self._alone else len(self.rows)
        pool.share(kept)
        blocks = pool.claim(known, wanted - len(kept) - len(known), spare)
        if blocks is None:
            pool.release(kept)
            return False
        sequence.blocks = kept + blocks
        sequence.start = len(context) if donor else len(known) * BLOCK_TOKENS
        sequence.pure, sequence.hidden = True, None
        sequence.entered = self._entries = self._entries + 1
        self.counters["prefix_hit_tokens"] += sequence.start
        if not self._alone:
            pool.learn(context, sequence.blocks)
        return True

    # --- running and leaving ------------------------------------------------------------------

    def make_room(self) -> None:
        """A place for the next token of every row; the last that entered give theirs up for it."""
        for sequence in sorted(self.rows.full(), key=lambda s: s.entered):
            while sequence.row >= 0:
                blocks = self.pool.claim((), 1)
                if blocks is not None:
                    self.rows.add_block(sequence.row, blocks[0])
                    break
                self._preempt(max(self.rows.sequences, key=lambda s: s.entered))

    def compact(self) -> dict[int, int]:
        """Where blocks in use lie far apart: what must be copied to where, or nothing."""
        if self.rows.span <= _LOOSE * self.pool.used + 8:
            return {}
        copies = self.pool.compact()
        self.rows.renumber(copies)
        return copies

    def leave(self, row: int, comes_back: bool = False) -> Running:
        """Take a sequence out; what it leaves in the cache is kept if its session may go on."""
        stored = int(self.rows.position[row])
        sequence = self.rows.store(row)
        self.rows.remove(row)
        session = sequence.request.session_id
        if sequence.pure and not self._alone and (session or comes_back):
            self.pool.learn(sequence.context[:stored], sequence.blocks)
        if session and len(self._sessions) < _SESSIONS:
            self._sessions.add(session)
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.hidden = [], None
        return sequence

    def send_back(self) -> None:
        """All that run wait again, in their order, before the others."""
        running = sorted(self.rows.sequences, key=lambda s: s.entered, reverse=True)
        for sequence in running:
            self.waiting.appendleft(self.leave(sequence.row, comes_back=True))

    def _preempt(self, sequence: Running) -> None:
        self.counters["preemptions"] += 1
        self.waiting.appendleft(self.leave(sequence.row, comes_back=True))
