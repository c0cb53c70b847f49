"""Who holds which block of the key-value cache, and what earlier prompts left in it. No tensors.

A block has room for the keys and values of ``BLOCK_TOKENS`` tokens. Full blocks are known by the
tokens in them and before them, so that a prompt that begins alike takes them over; a block that
nobody uses any more is kept until its place is needed, the longest unused one going first, to host
memory where that has room.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["BLOCK_TOKENS", "BlockPool", "Known", "Move", "blocks_for"]

BLOCK_TOKENS = 32
_ROOT = 0

Move = tuple[Literal["store", "fetch"], int, int]
"""From a block to a host slot, or from a host slot to a block."""


def blocks_for(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


@dataclass(eq=False)
class Known:
    """A full block by its content: the tokens in it, after those of its parent."""

    key: tuple[int, tuple[int, ...]]
    """Number of the parent (0 without one), and the block's own tokens."""
    number: int
    block: int = -1
    """Where it lies; -1 while it is in host memory."""
    slot: int = -1
    """Its place in host memory; -1 while it is not there."""


class BlockPool:
    """At most ``limit`` blocks and ``host_limit`` host slots.

    Blocks are numbered from 0, and the lowest free one is taken. ``patient``: the pool grows up to
    its limit before it gives up what nobody uses.
    """

    def __init__(self, limit: int, host_limit: int = 0) -> None:
        self.limit, self.host_limit, self.patient = limit, host_limit, False
        self.made = 0
        """Blocks that have been handed out at some time: numbers below this one are in memory."""
        self._free: list[int] = []
        self._users: list[int] = []
        self._known: dict[int, Known] = {}
        self._idle: OrderedDict[int, Known] = OrderedDict()
        self._index: dict[tuple[int, tuple[int, ...]], Known] = {}
        self._host: OrderedDict[int, Known] = OrderedDict()
        self._host_free = list(range(host_limit))
        self._moves: list[Move] = []
        self._numbers = _ROOT

    @property
    def used(self) -> int:
        """Blocks that sequences use."""
        return self.made - len(self._free) - len(self._idle)

    @property
    def idle(self) -> int:
        """Blocks that nobody uses, kept for what they hold."""
        return len(self._idle)

    @property
    def stored(self) -> int:
        """Host slots in use."""
        return len(self._host)

    @property
    def available(self) -> int:
        """Blocks that could be taken now."""
        return self.limit - self.used

    # --- taking and giving back ---------------------------------------------------------------

    def claim(self, known: Sequence[Known], fresh: int, spare: int = 0) -> list[int] | None:
        """Blocks of a sequence: those that :meth:`match` found, then ``fresh`` new ones.

        None, and nothing has changed, unless ``spare`` blocks are still available after that.
        """
        revived = sum(one.block in self._idle for one in known)
        away = sum(one.block < 0 for one in known)
        if revived + away + fresh + spare > self.available:
            return None
        for one in known:  # first of all, so that none of them is given up for another
            if one.block >= 0:
                self.share([one.block])
            else:
                del self._host[one.slot]
        blocks = [one.block if one.block >= 0 else self._fetch(one) for one in known]
        return blocks + [self._take() for _ in range(fresh)]

    def share(self, blocks: Sequence[int]) -> None:
        """One user more for each of these blocks."""
        for block in blocks:
            self._idle.pop(block, None)
            self._users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each; of what nobody uses then, the end is given up first."""
        for block in reversed(blocks):
            self._users[block] -= 1
            assert self._users[block] >= 0
            if self._users[block]:
                continue
            if block in self._known:
                self._idle[block] = self._known[block]
            else:
                heapq.heappush(self._free, block)

    def take_moves(self) -> list[Move]:
        """What must be copied, in this order, before blocks are written to."""
        moves, self._moves = self._moves, []
        return moves

    def compact(self) -> dict[int, int]:
        """Number the blocks in use from 0 on: what must be copied to where, all at once.

        A kept block in the way changes places with the one that comes.
        """
        used = [block for block, users in enumerate(self._users) if users]
        holes = [block for block in range(len(used)) if not self._users[block]]
        moved = dict(zip(reversed(used), holes, strict=False))
        kept = {hole: block for block, hole in moved.items() if hole in self._idle}
        for block, hole in moved.items():
            self._users[block], self._users[hole] = 0, self._users[block]
        copies = moved | kept
        self._known = {copies.get(block, block): one for block, one in self._known.items()}
        for block, one in self._known.items():
            one.block = block
        self._idle = OrderedDict((one.block, one) for one in self._idle.values())
        taken = set(self._idle)
        self._free = [b for b, users in enumerate(self._users) if not users and b not in taken]
        return copies

    # --- what blocks hold ---------------------------------------------------------------------

    def match(self, tokens: Sequence[int]) -> list[Known]:
        """Full blocks that hold the beginning of ``tokens``, as many as there are."""
        found: list[Known] = []
        parent = _ROOT
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            one = self._index.get((parent, tuple(tokens[start : start + BLOCK_TOKENS])))
            if one is None:
                break
            found.append(one)
            parent = one.number
        return found

    def learn(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """These blocks hold these tokens; those that are full can be matched from now on."""
        parent = _ROOT
        for start, block in zip(range(0, len(tokens), BLOCK_TOKENS), blocks, strict=False):
            key = (parent, tuple(tokens[start : start + BLOCK_TOKENS]))
            if len(key[1]) < BLOCK_TOKENS:
                return
            one = self._index.get(key)
            if one is None:
                self._numbers += 1
                one = self._index[key] = self._known[block] = Known(key, self._numbers, block)
            parent = one.number

    def forget(self) -> None:
        """No block can be matched any more (the weights have changed); used ones stay in use."""
        for block in self._idle:
            heapq.heappush(self._free, block)
        self._index.clear()
        self._known.clear()
        self._idle.clear()
        self._host.clear()
        self._host_free = list(range(self.host_limit))
        self._moves.clear()

    def vacate(self) -> None:
        """Give all blocks up, which nobody may use, those last used to host memory."""
        assert not self.used, "sequences use blocks"
        while self._idle:
            if len(self._idle) > self.host_limit:
                one = self._idle.popitem(last=False)[1]
                del self._index[one.key]
                del self._known[one.block]
            else:
                self._evict()
        self.made = 0
        self._free.clear()
        self._users.clear()

    # --- inside -------------------------------------------------------------------------------

    def _take(self) -> int:
        grow = self.made < self.limit
        if self._free:
            block = heapq.heappop(self._free)
        elif self._idle and not (grow and self.patient):
            block = self._evict()
        else:
            assert grow, "no block left"
            block, self.made = self.made, self.made + 1
            self._users.append(0)
        self._users[block] = 1
        return block

    def _evict(self) -> int:
        """The block that has been unused for longest, its content moved or lost."""
        block, one = self._idle.popitem(last=False)
        del self._known[block]
        if not self.host_limit:
            del self._index[one.key]
            return block
        if not self._host_free:
            slot, oldest = self._host.popitem(last=False)
            del self._index[oldest.key]
            self._host_free.append(slot)
        one.block, one.slot = -1, self._host_free.pop()
        self._host[one.slot] = one
        self._moves.append(("store", block, one.slot))
        return block

    def _fetch(self, one: Known) -> int:
        block = self._take()
        self._moves.append(("fetch", one.slot, block))
        self._host_free.append(one.slot)
        one.block, one.slot = block, -1
        self._known[block] = one
        return block
