"""The pool of blocks against a model that knows the tokens of every block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rlframe_plugins.rollouts.torch.blocks import BLOCK_TOKENS as BLOCK
from rlframe_plugins.rollouts.torch.blocks import BlockPool, blocks_for
from rlframe_plugins.rollouts.torch.parts import Split

TEXTS = st.lists(st.integers(0, 1), max_size=4).flatmap(
    lambda choices: st.integers(1, BLOCK).map(
        lambda rest: tuple(n for c in choices for n in [c] * BLOCK) + (7,) * rest
    )
)
"""Few different full blocks, so that beginnings meet, and a rest."""


class Pool(RuleBasedStateMachine):
    """Sequences come, grow, are forked and go. ``memory`` is what every block really holds."""

    @initialize(limit=st.integers(5, 12), host=st.integers(0, 3), patient=st.booleans())
    def start(self, limit, host, patient):
        self.pool = BlockPool(limit, host)
        self.pool.patient = patient
        self.sequences = []
        self.memory, self.host = {}, {}
        self.version = 0

    def moved(self):
        for what, source, target in self.pool.take_moves():
            if what == "store":
                self.host[target] = self.memory[source]
            else:
                self.memory[target] = self.host[source]

    def write(self, text, blocks, start):
        """Content: everything up to the block's end, and the weights; only where it is new."""
        for index, block in enumerate(blocks):
            end = (index + 1) * BLOCK
            if end > start:
                assert all(block not in s[1] for s in self.sequences), "written while in use"
                self.memory[block] = (self.version, text[:end])

    @rule(text=TEXTS, spare=st.integers(0, 2))
    def enter(self, text, spare):
        known = self.pool.match(text[:-1])
        wanted = blocks_for(len(text)) - len(known)
        before = self.pool.available, self.pool.idle
        blocks = self.pool.claim(known, wanted, spare)
        if blocks is None:
            assert before == (self.pool.available, self.pool.idle)
            used = {b for _, held, _ in self.sequences for b in held}
            shared = {one.block for one in known} & used
            assert self.pool.limit - len(used) < blocks_for(len(text)) - len(shared) + spare
            return
        self.moved()
        start = len(known) * BLOCK
        for index, block in enumerate(blocks[: len(known)]):
            assert self.memory[block] == (self.version, text[: (index + 1) * BLOCK])
        self.write(text, blocks, start)
        self.sequences.append((text, blocks, self.version))
        self.pool.learn(text, blocks)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def fork(self, data):
        text, blocks, version = data.draw(st.sampled_from(self.sequences))
        full = blocks[: len(text) // BLOCK]
        self.pool.share(full)
        rest = self.pool.claim((), blocks_for(len(text)) - len(full))
        if rest is None:
            self.pool.release(full)
            return
        self.moved()
        for block in rest:
            self.memory[block] = self.memory[blocks[-1]]
        self.sequences.append((text, full + rest, version))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), keep=st.booleans())
    def leave(self, data, keep):
        text, blocks, version = self.sequences.pop(
            data.draw(st.integers(0, len(self.sequences) - 1))
        )
        if keep and version == self.version:
            self.pool.learn(text, blocks)
        self.pool.release(blocks)

    @rule()
    def new_weights(self):
        self.pool.forget()
        self.version += 1
        assert self.pool.idle == self.pool.stored == 0

    @rule()
    def compact(self):
        copies = self.pool.compact()
        before = dict(self.memory)
        for source, target in copies.items():
            self.memory[target] = before[source]
        self.sequences = [
            (text, [copies.get(b, b) for b in blocks], v) for text, blocks, v in self.sequences
        ]
        used = {b for _, blocks, _ in self.sequences for b in blocks}
        assert used == set(range(len(used)))

    @rule()
    def sleep(self):
        for _, blocks, _ in self.sequences:
            self.pool.release(blocks)
        self.sequences = []
        self.pool.vacate()
        self.moved()
        self.memory = {}
        assert self.pool.made == self.pool.used == self.pool.idle == 0

    @invariant()
    def holds(self):
        if not hasattr(self, "pool"):
            return
        used = {b for _, blocks, _ in self.sequences for b in blocks}
        assert self.pool.used == len(used)
        assert self.pool.made <= self.pool.limit
        assert self.pool.used + self.pool.idle <= self.pool.made
        assert self.pool.stored <= self.pool.host_limit
        for text, blocks, version in self.sequences:
            assert len(set(blocks)) == len(blocks) == blocks_for(len(text))
            for index, block in enumerate(blocks):
                held = self.memory[block]
                assert held == (version, text[: (index + 1) * BLOCK])


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_what_was_unused_for_longest_goes_first_and_ends_before_beginnings():
    pool = BlockPool(4)
    pool.patient = True
    for text in ((1,) * 2 * BLOCK, (2,) * 2 * BLOCK):
        blocks = pool.claim((), 2)
        pool.learn(text, blocks)
        pool.release(blocks)
    assert pool.claim((), 1) == [1]
    assert [len(pool.match((n,) * 2 * BLOCK)) for n in (1, 2)] == [1, 2]


@pytest.mark.parametrize("patient", [False, True])
def test_a_patient_pool_grows_before_it_forgets(patient):
    pool = BlockPool(2)
    pool.patient = patient
    first = pool.claim((), 1)
    pool.learn((1,) * BLOCK, first)
    pool.release(first)
    assert pool.claim((), 1) == ([1] if patient else [0])


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_block_of_every_row_is_in_one_pair(data):
    """Rows that share beginnings, blocks anywhere: parts name each row's blocks once."""
    exact = data.draw(st.booleans())
    rows = data.draw(st.integers(1, 1 if exact else 20))
    spread = data.draw(st.integers(1, 3))
    numbers = iter(data.draw(st.permutations(range(0, 200 * spread, spread))))
    beginnings = [[next(numbers) for _ in range(n)] for n in (0, 1, 3)]
    tables, positions = [], []
    for _ in range(rows):
        begin = data.draw(st.sampled_from(beginnings))
        own = data.draw(st.integers(1, 3))
        tables.append(begin + [next(numbers) for _ in range(own)])
        inside = data.draw(st.integers(0, own * BLOCK - 1))
        positions.append(len(begin) * BLOCK + inside)
    padded = np.array([(t + [0] * 6)[:6] for t in tables])
    split = Split(np.array(positions), padded, exact)
    pairs = []
    for part in split.parts:
        blocks = part.blocks
        ids = np.arange(blocks.start, blocks.stop) if isinstance(blocks, slice) else blocks
        assert len(ids) == len(part.rows)
        pairs += [(i, r) for i, users in zip(ids, part.rows, strict=True) for r in users]
    real = [(int(block), int(row)) for block, row in pairs if row != rows]
    wanted = [
        (block, row)
        for row, (table, position) in enumerate(zip(tables, positions, strict=True))
        for block in table[: position // BLOCK + 1]
    ]
    assert sorted(real) == sorted(wanted)
    for row, places in enumerate(split.pairs):
        found = {pairs[place] for place in places}
        assert found == {pair for pair in pairs if pair[1] == row}
    unseen = split.parts[0].unseen
    for row, position in enumerate(positions):
        last = pairs.index((tables[row][position // BLOCK], row))
        assert unseen[last].tolist() == [slot > position % BLOCK for slot in range(BLOCK)]
    if exact:
        assert split.parts[0].blocks.tolist() == [block for block, _ in wanted]
