"""What every transfer engine must do. Subclass :class:`TransferKit` and name yours.

Example::

    class TestMine(TransferKit):
        transfer = "mine"
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from rlframe.batching.batch import Batch
from rlframe.batching.packed import Packed
from rlframe.config.load import Asked, load_config
from rlframe.errors import BatchError
from rlframe.host.host import PluginHost
from rlframe.interfaces.transfer import LocalTransfer, TransferEngine

__all__ = ["TransferKit"]

_SPREAD = [0, 5, 1, 0, 3]
"""Tokens of the rows of a ragged column: none, one, several."""


class TransferKit:
    """Tests of one transfer engine in one process.

    ``transfer`` is its name, ``options`` are its options. Whatever it needs (a cluster) must run.
    """

    transfer: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def engine(self) -> Iterator[TransferEngine]:
        """A fresh engine, as a controller has it."""
        values = {"transfer": {"name": self.transfer, **self.options}}
        config = load_config(PluginHost().load(), Asked(values=values)).config
        engine: TransferEngine = config.transfer.load()(config.transfer.config)
        engine.start()
        yield engine
        engine.close()

    @staticmethod
    def columns() -> dict[str, Packed]:
        """One column of every kind."""
        lengths = np.array(_SPREAD, np.int64)
        count = int(lengths.sum())
        words = np.empty(5, object)
        words[:] = ["stop", "length", None, {"a": [1]}, "x" * 1000]
        return {
            "response_ids": Packed(np.arange(count, dtype=np.int64), lengths),
            "response_mask": Packed(np.arange(count) % 2 == 0, lengths),
            "rollout_logprobs": Packed(np.linspace(-3, 0, count, dtype=np.float32), lengths),
            "rewards": Packed(np.array([1, np.nan, -0.0, 3, 4], np.float32)),
            "group_ids": Packed(np.array([3, 3, 9, 9, 2**60])),
            "reward_parts": Packed(np.arange(10, dtype=np.float32).reshape(5, 2)),
            "values": Packed(np.arange(3 * count, dtype=np.float32).reshape(count, 3), lengths),
            "finish_reason": Packed(words),
        }

    def test_rows_come_back_bit_equal(self, engine: TransferEngine) -> None:
        """Whole blocks, some rows, in any order, several times, none."""
        columns = self.columns()
        handles = engine.put(columns)
        assert set(handles) == set(columns)
        for rows in ([0, 1, 2, 3, 4], [4, 0, 0, 2], [1], []):
            wanted = np.array(rows, np.int64)
            for name, packed in columns.items():
                (found,) = engine.get([(handles[name], wanted)])
                _assert_same(found, packed.take(wanted), name)

    def test_many_blocks_are_read_at_once(self, engine: TransferEngine) -> None:
        """In the order of the pieces, also of different columns, one of them twice."""
        first, second = engine.put(self.columns()), engine.put(self.columns())
        rows = np.array([3, 1], np.int64)
        names = ["response_ids", "rewards", "finish_reason", "response_ids"]
        blocks = [first, second, first, first]
        found = engine.get([(b[n], rows) for b, n in zip(blocks, names, strict=True)])
        for name, packed in zip(names, found, strict=True):
            _assert_same(packed, self.columns()[name].take(rows), name)
        assert engine.get([]) == []

    def test_views_of_a_block_read_alike(self, engine: TransferEngine) -> None:
        """Some rows of a block, in any order and repeated, none; a view of a view, beside others.

        A batch of narrowed handles reads like the whole one.
        """
        columns = self.columns()
        handles = engine.put(columns)
        outer, inner = np.array([4, 1, 1, 3, 0], np.int64), np.array([3, 0, 2, 2], np.int64)
        last, none = np.array([2, 0], np.int64), np.zeros(0, np.int64)
        for name, packed in columns.items():
            view = handles[name].view(outer)
            deeper = view.view(inner)
            empty = handles[name].view(none)
            assert (view.rows, deeper.rows, empty.rows) == (5, 4, 0)
            pieces = [(view, last), (handles[name], last), (deeper, last), (empty, none)]
            found = engine.fetch(pieces)
            wanted = [outer[last], last, outer[inner][last], none]
            for one, rows in zip(found, wanted, strict=True):
                _assert_same(one, packed.take(rows), name)
        batch = Batch.from_columns(columns, transfer=engine)
        whole, part = batch.take(outer), batch.take(outer).narrow().take(inner).narrow()
        assert np.array_equal(part.lengths("response_ids"), whole.lengths("response_ids")[inner])
        for name in columns:
            _assert_same(part.packed(name), columns[name].take(outer[inner]), name)

    def test_handles_carry_what_is_small(self, engine: TransferEngine) -> None:
        """Column, rows, lengths and values of numbers a row; never ragged values."""
        for name, handle in engine.put(self.columns()).items():
            packed = self.columns()[name]
            assert (handle.column, handle.rows, handle.nbytes) == (name, 5, packed.nbytes)
            assert handle.owner
            if packed.lengths is not None:
                assert handle.values is None
                assert handle.lengths is not None
                assert np.array_equal(handle.lengths, packed.lengths)
        keys = [h.key for _ in range(2) for h in engine.put(self.columns()).values()]
        assert len(set(keys)) == len(keys)

    def test_handles_travel(self, engine: TransferEngine) -> None:
        """A handle that was pickled in this process reads the same, where it can be pickled."""
        handle = engine.put(self.columns())["response_ids"]
        try:
            again = pickle.loads(pickle.dumps(handle))
        except Exception as error:  # noqa: BLE001 - e.g. references that only a call may carry
            pytest.skip(f"its handles travel only inside calls: {type(error).__name__}")
        (found,) = engine.get([(again, np.arange(5))])
        _assert_same(found, self.columns()["response_ids"], "response_ids")

    def test_what_is_read_may_be_written(self, engine: TransferEngine) -> None:
        """A tensor of a batch is the reader's own: the block stays as it is."""
        batch = Batch.from_columns(self.columns(), transfer=engine)
        for name in ("response_ids", "rewards", "group_ids", "reward_parts"):
            before = batch[name].clone()
            batch[name].fill_(5)
            assert before.equal(batch[name]) or before.isnan().any()

    @pytest.mark.parametrize("seed", range(5))
    def test_batches_are_those_of_the_plain_engine(self, engine: TransferEngine, seed: int) -> None:
        """Random joins, selections and orders read alike."""
        pairs = []
        for transfer in (engine, LocalTransfer()):
            rng = np.random.default_rng(seed)
            parts = [Batch.from_columns(self.columns(), transfer=transfer) for _ in range(3)]
            batch = Batch.concat(parts).take(rng.integers(0, 15, 11)).shuffle(seed)
            batch = batch.add(
                {
                    "advantages": Packed(
                        rng.random(int(_tokens(batch)), np.float32), batch.lengths("response_ids")
                    )
                }
            )
            pairs.append(batch.keep(rng.random(11) < 0.7))
        for name in pairs[1].columns:
            _assert_same(pairs[0].packed(name), pairs[1].packed(name), name)

    def test_what_is_read_is_counted(self, engine: TransferEngine) -> None:
        """``bytes_read`` grows by the ragged values that this process deserialises."""
        if isinstance(engine, LocalTransfer):
            pytest.skip("nothing is deserialised in one process")
        batch = Batch.from_columns(self.columns(), transfer=engine)
        before = engine.bytes_read
        batch.lengths("response_ids")
        batch["rewards"]
        assert engine.bytes_read == before
        batch["response_ids"]
        assert engine.bytes_read - before == 8 * sum(_SPREAD)

    def test_opaque_rows_are_read_one_by_one(self, engine: TransferEngine) -> None:
        """A row that is not asked for is not made, and does not count as read."""
        words = np.empty(64, object)
        words[:] = [f"{n:01000}" for n in range(32)] + [_Unreadable() for _ in range(32)]
        (handle,) = engine.put({"response_text": Packed(words)}).values()
        before = engine.bytes_read
        (found,) = engine.get([(handle, np.array([3]))])
        assert found.values.tolist() == [words[3]]
        (found,) = engine.get([(handle.view(np.array([40, 7])), np.array([1]))])
        assert found.values.tolist() == [words[7]]
        if not isinstance(engine, LocalTransfer):
            assert 2000 <= engine.bytes_read - before < 2200

    def test_a_freed_block_is_an_error(self, engine: TransferEngine) -> None:
        """That names the column and who made it; other blocks stay."""
        if not engine.forgets:
            pytest.skip("its blocks live as long as a handle to them")
        handles, others = engine.put(self.columns()), engine.put(self.columns())
        handle = handles["response_ids"]
        engine.free(handles.values())
        with pytest.raises(BatchError, match="'response_ids'") as caught:
            engine.get([(handle, np.arange(5))])
        assert handle.owner in str(caught.value)
        engine.free(handles.values())
        (found,) = engine.get([(others["response_ids"], np.arange(5))])
        _assert_same(found, self.columns()["response_ids"], "response_ids")


class _Unreadable:
    """Raises where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise AssertionError("a row that nobody asked for was made")


def _tokens(batch: Batch) -> int:
    return int(batch.lengths("response_ids").sum())


def _assert_same(found: Packed, wanted: Packed, name: str) -> None:
    assert found.values.dtype == wanted.values.dtype, name
    assert found.values.shape == wanted.values.shape, name
    if wanted.values.dtype == object:
        assert found.values.tolist() == wanted.values.tolist(), name
    else:
        assert np.array_equal(found.values, wanted.values, equal_nan=found.values.dtype == "f4")
    assert (found.lengths is None) == (wanted.lengths is None), name
    if wanted.lengths is not None and found.lengths is not None:
        assert np.array_equal(found.lengths, wanted.lengths), name
