"""A batch behaves as lists of rows do, whatever was taken, joined, shuffled and split before."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlframe import Batch, BatchError, Column
from rlframe.batching.columns import make_schema
from rlframe.batching.packed import Packed
from rlframe.interfaces.transfer import CountedTransfer, LocalTransfer

SCHEMA = make_schema(
    [
        Column("answer", "B", "object", "data", "what is right"),
        Column("routes", "BRK", "float32", "rollout", "numbers of each response token"),
        Column("whole", "BS", "int32", "test", "prompt and response"),
    ]
)


def dense_rows(seed: int, count: int) -> list[dict]:
    """Rows as plain Python values: the reference."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        p, r = int(rng.integers(1, 5)), int(rng.integers(0, 6))
        rows.append(
            {
                "prompt_ids": rng.integers(1, 99, p).tolist(),
                "response_ids": rng.integers(1, 99, r).tolist(),
                "response_mask": (rng.random(r) < 0.7).tolist(),
                "rollout_logprobs": rng.integers(-9, 0, r).astype(float).tolist(),
                "whole": rng.integers(1, 9, p + r).tolist(),
                "routes": rng.integers(0, 9, (r, 2)).astype(float).tolist(),
                "rewards": float(number),
                "reward_parts": [float(number), 0.5],
                "group_ids": seed * 1000 + number // 2,
                "train": bool(number % 3),
                "answer": [number, ["deep"]],
            }
        )
    return rows


def make(rows: list[dict]) -> Batch:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return Batch.from_columns(columns, schema=SCHEMA)


def check(batch: Batch, rows: list[dict]) -> None:
    assert len(batch) == len(rows)
    for name in batch:
        column = SCHEMA[name]
        wanted = [row[name] for row in rows]
        got = batch[name]
        if column.dtype == "object":
            assert got == wanted
        elif column.axis is None:
            assert got.tolist() == wanted
        else:
            lengths = batch.lengths(name)
            assert lengths.tolist() == [len(w) for w in wanted]
            assert got.shape[1] == max(lengths, default=0)
            for line, length, values in zip(got, lengths, wanted, strict=True):
                used = line[len(line) - length :] if column.axis == "P" else line[:length]
                assert used.tolist() == values
                assert line.double().sum() == used.double().sum()


def test_columns_read_back():
    rows = dense_rows(0, 5)
    batch = make(rows)
    check(batch, rows)
    assert set(batch.columns) == set(rows[0])
    assert batch["rewards"].dtype == torch.float32
    assert batch["response_mask"].dtype == torch.bool


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_sequence_of_edits_equals_the_same_on_lists(data):
    rows = dense_rows(1, 6)
    batch = make(rows)
    for _ in range(data.draw(st.integers(1, 6))):
        size = len(rows)
        edit = data.draw(st.sampled_from(["take", "keep", "repeat", "shuffle", "split", "concat"]))
        if edit == "take" and size:
            chosen = data.draw(st.lists(st.integers(-size, size - 1), max_size=8))
            batch, rows = batch.take(chosen), [rows[i] for i in chosen]
        elif edit == "keep":
            mask = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
            batch, rows = batch.keep(mask), [r for r, m in zip(rows, mask, strict=True) if m]
        elif edit == "repeat" and size < 20:
            batch, rows = batch.repeat(2), [r for r in rows for _ in range(2)]
        elif edit == "shuffle":
            order = np.random.default_rng(7).permutation(size)
            batch, rows = batch.shuffle(7), [rows[i] for i in order]
        elif edit == "split":
            cut = data.draw(st.integers(0, size))
            parts = batch.split([cut, size - cut])
            check(parts[0], rows[:cut])
            batch, rows = Batch.concat(parts[::-1]), rows[cut:] + rows[:cut]
        elif size < 20:
            more = dense_rows(data.draw(st.integers(2, 4)), 3)
            batch, rows = Batch.concat([batch, make(more)]), rows + more
        check(batch, rows)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), chosen=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_tensordict_and_back(seed, chosen):
    rows = dense_rows(seed, 5)
    batch = make(rows).take(chosen)
    batch.scalars = {"kl_coef": 0.25}
    micro = batch.to_tensordict()
    assert "answer" not in micro
    assert micro["response_lengths"].tolist() == batch.lengths("response_ids").tolist()
    assert micro["scalars", "kl_coef"].tolist() == [0.25] * len(chosen)
    back = Batch.from_tensordict(micro, schema=SCHEMA)
    check(back, [rows[i] for i in chosen])
    assert back.scalars == batch.scalars
    assert batch["scalars", "kl_coef"].tolist() == [0.25] * len(chosen)


def test_padded_columns_are_cut_to_the_rows_whatever_their_order():
    batch = Batch.from_columns(
        {
            "response_mask": torch.ones(2, 5, dtype=torch.bool),
            "old_logprobs": torch.full((2, 3), float("nan")),
            "response_ids": [[4, 5, 6], [7]],
        }
    )
    assert batch.lengths("response_mask").tolist() == [3, 1]
    assert batch["response_mask"].tolist() == [[True] * 3, [True, False, False]]
    more = batch.add({"advantages": torch.ones(2, 9)})
    assert more["advantages"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "advantages" not in batch


def test_left_padding_of_prompts():
    batch = Batch.from_columns({"prompt_ids": [[1, 2, 3], [4]]})
    assert batch["prompt_ids"].tolist() == [[1, 2, 3], [0, 0, 4]]


def test_opaque_columns_keep_their_values():
    values = [[1, 2], [3, 4], {"a": np.arange(3)}]
    batch = Batch.from_columns({"answer": values}, schema=SCHEMA)
    assert batch.take([2, 0])["answer"] == [values[2], [1, 2]]


def test_columns_of_workers_come_back_in_batch_order():
    batch = make(dense_rows(3, 5))
    transfer = LocalTransfer()
    lengths = batch.lengths("response_ids")
    parts = []
    for rows in ([3, 0], [], [4, 1, 2]):
        index = np.array(rows, np.int64)
        values = Packed.from_rows([np.full(lengths[i], i) for i in rows], "float32")
        scores = Packed(np.array(rows, np.float32))
        parts.append((transfer.put({"old_logprobs": values, "scores": scores}), index))
    got = batch.add_handles(parts)
    assert got["scores"].tolist() == [0, 1, 2, 3, 4]
    for number, row in enumerate(got["old_logprobs"]):
        assert row[: lengths[number]].tolist() == [number] * lengths[number]
    with pytest.raises(BatchError, match="exists already"):
        got.add_handles(parts)
    with pytest.raises(BatchError, match="returned 2 rows for a batch of 5"):
        batch.add_handles(parts[:1])
    twice = [parts[0], parts[0], (parts[2][0], np.array([4]))]
    with pytest.raises(BatchError, match="returned 5 rows"):
        batch.add_handles(twice)
    wrong = [(parts[0][0], np.array([3, 0, 4])), (parts[1][0], np.array([1, 2]))]
    with pytest.raises(BatchError, match="worker 0 returned other columns or rows"):
        batch.add_handles(wrong)


def test_edits_move_nothing_and_reading_moves_just_the_rows_read():
    class Counting(LocalTransfer):
        read: list

        def get(self, pieces):
            self.read += [(handle.column, len(rows)) for handle, rows in pieces]
            return super().get(pieces)

    transfer = Counting()
    transfer.read = []
    columns = {name: [row[name] for row in dense_rows(0, 6)] for name in dense_rows(0, 1)[0]}
    batch = Batch.from_columns(columns, schema=SCHEMA, transfer=transfer)
    part = (
        Batch.concat([batch, batch.shuffle(1)]).take([1, 2, 7]).select(["rewards", "response_ids"])
    )
    assert part.lengths("response_ids").shape == (3,)
    assert transfer.read == []
    assert part["rewards"].shape == (3,)
    assert transfer.read == [], "per-row columns travel with the handle"
    assert part["response_ids"].shape[0] == 3
    assert sum(count for _, count in transfer.read) == 3
    assert {name for name, _ in transfer.read} == {"response_ids"}


def test_slices_of_one_block_join_into_one_block():
    first, second = dense_rows(0, 6), dense_rows(1, 2)
    batch, again = make(first), make(second)
    parts = [batch.take([4, 5]), again, batch.take([0]), batch.take([1, 2, 3])]
    joined = Batch.concat(parts)
    assert len(joined.handles()) == 2 * len(batch.columns)
    check(joined, [first[4], first[5], *second, first[0], *first[1:4]])
    rows = joined._index["rewards"].rows
    assert joined._index["response_ids"].rows is rows
    assert rows.row.tolist() == [4, 5, 0, 1, 0, 1, 2, 3]


def test_a_carried_value_stands_at_each_token_of_its_row():
    batch = make(dense_rows(2, 5))
    values = np.arange(5, dtype=np.float32) - 1
    lengths = batch.lengths("response_ids")
    written = batch.add({"advantages": Packed(np.repeat(values, lengths), lengths)})
    carried = batch.carry({"advantages": values})
    for got in (carried, Batch.concat([carried.take([0, 1]), carried.take([2, 3, 4])])):
        assert torch.equal(got["advantages"], written["advantages"])
        assert got.lengths("advantages").tolist() == lengths.tolist()
    picked = [3, 0, 3]
    assert torch.equal(carried.take(picked)["advantages"], written.take(picked)["advantages"])
    assert sum(h.nbytes for h in carried.handles() if h.column == "advantages") == 20
    assert torch.equal(batch.carry({"scores": values})["scores"], torch.from_numpy(values))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"advantages": np.zeros(4, np.float32)}, "4 rows, the batch 3"),
        ({"advantages": np.zeros(3)}, "is float32; its data is float64"),
        ({"advantages": np.zeros((3, 2), np.float32)}, r"is BR; its data has shape \(3, 2\)"),
        ({"rewards": np.zeros(3, np.float32)}, "exists already"),
    ],
)
def test_carried_values_are_checked(columns, message):
    with pytest.raises(BatchError, match=message):
        make(dense_rows(0, 3)).carry(columns)
    bare = Batch.from_columns({"rewards": np.zeros(3, np.float32)})
    with pytest.raises(BatchError, match="has no such rows yet"):
        bare.carry({"advantages": np.zeros(3, np.float32)})


def test_what_is_read_through_an_object_is_counted():
    batch = make(dense_rows(0, 4))
    mine, theirs = CountedTransfer(batch.transfer), CountedTransfer(batch.transfer)
    seen = batch.via(mine)
    assert seen.take([1, 2])["rewards"].shape == (2,)
    assert (mine.bytes_read, theirs.bytes_read) == (8, 0)
    assert torch.equal(seen.via(theirs)["response_ids"], batch["response_ids"])
    assert mine.bytes_read == 8
    assert theirs.bytes_read == batch.packed("response_ids").nbytes


def test_a_narrow_batch_reads_alike_and_holds_no_other_rows():
    columns = {name: [row[name] for row in dense_rows(0, 6)] for name in dense_rows(0, 1)[0]}
    batch = Batch.from_columns(columns, schema=SCHEMA)
    part = Batch.concat([batch, batch.shuffle(1)]).take([7, 1, 2, 1])
    narrow = part.narrow()
    for wanted in (narrow, narrow.narrow(), Batch.concat([part, narrow]).take([4, 5, 6, 7])):
        for name in part.columns:
            assert np.array_equal(wanted.packed(name).values, part.packed(name).values), name
    assert narrow.lengths("response_ids").tolist() == part.lengths("response_ids").tolist()
    assert max(handle.rows for handle in narrow.handles()) <= 3
    assert all(len(h.lengths) == h.rows for h in narrow.handles() if h.lengths is not None)
    again = narrow.take([3, 0]).narrow()
    assert again["rewards"].tolist() == part["rewards"][[3, 0]].tolist()


def test_blocks_without_a_row_left_are_let_go():
    first, second = make(dense_rows(0, 3)), make(dense_rows(1, 3))
    joined = Batch.concat([first, second])
    kept = joined.take([4, 5])
    assert {h.key for h in kept.handles()} == {h.key for h in second.handles()}
    assert joined.take([]).handles() == []


def test_sum_ignores_masked_values_and_asks_the_ranks():
    batch = make(dense_rows(0, 3))
    batch.reduce = lambda tensor: tensor * 2
    values = torch.tensor([1.0, float("nan"), 3.0])
    assert batch.sum(values, torch.tensor([True, False, True])).item() == 8
    assert batch.take([0]).sum(torch.ones(1)).item() == 2


def test_a_batch_can_be_pickled():
    rows = dense_rows(0, 3)
    check(pickle.loads(pickle.dumps(make(rows))), rows)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "at least one column"),
        ({"reward": [1.0]}, "unknown column 'reward'. Did you mean 'rewards'"),
        ({"rewards": [1.0, 2.0], "train": [True]}, "'train' has 1 rows, the batch 2"),
        ({"rewards": torch.ones(2, 3)}, r"'rewards' is B; its data has shape \(2, 3\)"),
        ({"group_ids": [1.5, 2.0]}, "'group_ids' is int64; its data is float64"),
        ({"response_ids": [[1.5], [2.0]]}, "'response_ids' is int64; its data is float64"),
        ({"response_ids": [[[1]], [[2]]]}, r"a row of it has shape \(1, 1\)"),
        ({"train": np.ones(2, np.int64)}, "'train' is bool; its data is int64"),
        ({"response_ids": [[1], [2, 3]], "response_mask": [[True], [True]]}, "differ in length"),
        (
            {"response_ids": [[1], [2, 3]], "response_mask": torch.ones(2, 1).bool()},
            "has width 1, the longest row 2",
        ),
        ({"rewards": Packed(np.zeros(2, np.float64))}, "'rewards' is float32; its data is float64"),
        ({"response_ids": Packed(np.zeros(2, np.int64))}, "another shape"),
    ],
)
def test_wrong_columns(columns, said):
    with pytest.raises(BatchError, match=said):
        Batch.from_columns(columns)


def test_columns_are_only_added_and_lengths_stay():
    batch = Batch.from_columns({"response_mask": [[True], [True, False]]})
    with pytest.raises(BatchError, match="'response_mask' exists already"):
        batch.add({"response_mask": [[True], [True, True]]})
    with pytest.raises(BatchError, match="differ in length"):
        batch.add({"response_ids": [[1, 2], [3]]})


def test_wrong_reads_and_edits():
    batch = make(dense_rows(0, 3))
    with pytest.raises(BatchError, match="unknown column 'reward'. Did you mean 'rewards'"):
        batch["reward"]
    with pytest.raises(BatchError, match="unknown scalar 'beta'"):
        batch.scalar("beta")
    with pytest.raises(BatchError, match="'rewards' has no lengths"):
        batch.lengths("rewards")
    with pytest.raises(BatchError, match="row 3 of a batch of 3"):
        batch.take([0, 3])
    with pytest.raises(BatchError, match="row -4 of a batch of 3"):
        batch.take([-4])
    with pytest.raises(BatchError, match="whole numbers"):
        batch.take(torch.tensor([True, False, True]))
    with pytest.raises(BatchError, match="a mask of shape"):
        batch.keep([True])
    with pytest.raises(BatchError, match="do not make up 3"):
        batch.split([1, 1])
    with pytest.raises(BatchError, match="differ in columns: rewards"):
        Batch.concat([batch, batch.select([n for n in batch if n != "rewards"])])
    with pytest.raises(BatchError, match="no batches"):
        Batch.concat([])
    with pytest.raises(BatchError, match="unknown column"):
        batch.to_tensordict(["rewardz"])


def test_empty_batches():
    rows = dense_rows(0, 3)
    empty = make(rows).take([])
    check(empty, [])
    micro = empty.to_tensordict()
    assert micro.batch_size == torch.Size([0])
    assert micro["response_mask"].shape == (0, 0)
    check(Batch.concat([empty, make(rows)]), rows)
    assert len(Batch.from_tensordict(TensorDict({"rewards": torch.ones(0)}, batch_size=[0]))) == 0
