from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlframe.config import DataConfig
from rlframe.data import PromptStream, read_rows
from rlframe.errors import DataError, SnapshotError
from rlframe.interfaces.data import Dataset
from rlframe.requests import Sampling


class Numbers(Dataset):
    """Row i asks for i, in a prompt of ``lengths[i]`` tokens."""

    def __init__(self, lengths: list[int], mark: str = "a") -> None:
        self.lengths, self.mark = lengths, mark

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict:
        return {"q": "x" * self.lengths[index], "number": index}

    @property
    def fingerprint(self) -> str:
        return self.mark

    @classmethod
    def open(cls, uri: str) -> Numbers:
        raise NotImplementedError


class Letters:
    """One token a letter."""

    eos_token_id = None

    def __call__(self, text: str, **_: object) -> dict:
        return {"input_ids": [ord(c) for c in text]}


def stream(lengths, *, mark="a", seed=3, **options) -> PromptStream:
    config = DataConfig(train="x:y", prompt_key="q", max_prompt_tokens=9, **options)
    return PromptStream(Numbers(lengths, mark), Letters(), config, seed=seed)


def numbers(rows) -> list[int]:
    return [row.columns["number"] for row in rows]


def test_each_prompt_comes_once_an_epoch_in_an_order_of_its_own():
    one = stream([1] * 20)
    epochs = [numbers(one.draw(20)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(20))
    assert one.epoch == 3


def test_the_order_depends_on_the_seed_alone():
    assert numbers(stream([1] * 20).draw(40)) == numbers(stream([1] * 20).draw(40))
    assert numbers(stream([1] * 20).draw(20)) != numbers(stream([1] * 20, seed=4).draw(20))


def test_the_order_is_the_same_on_every_machine_and_release():
    assert numbers(stream([1] * 8, seed=0).draw(16)) == [
        *(3, 2, 1, 6, 0, 7, 4, 5),
        *(7, 4, 5, 1, 6, 2, 0, 3),
    ]


def test_without_shuffle_the_order_is_the_files():
    assert numbers(stream([1] * 3, shuffle=False).draw(7)) == [0, 1, 2, 0, 1, 2, 0]


def test_group_ids_count_draws_over_the_run():
    one = stream([1] * 3)
    rows = one.draw(2) + one.draw(5)
    assert [row.group_id for row in rows] == list(range(7))


def test_a_row_carries_columns_prompt_sampling_and_place():
    config = DataConfig(train="x:y", prompt_key="q")
    sampling = Sampling(temperature=0.5)
    (row,) = PromptStream(Numbers([2]), Letters(), config, sampling=sampling).draw(1)
    assert row.columns == {"q": "xx", "number": 0, "prompt": "xx"}
    assert row.prompt_ids == (120, 120)
    assert row.sampling == sampling
    assert row.source == "row 0"


def test_a_dataset_smaller_than_a_step_goes_on_into_the_next_epoch():
    rows = stream([1] * 3).draw(8)
    assert sorted(Counter(numbers(rows)).values()) == [2, 3, 3]


def test_dropped_prompts_are_counted_and_take_no_group_id():
    one = stream([1, 99, 1, 99], over_long="drop", shuffle=False)
    rows = one.draw(4)
    assert numbers(rows) == [0, 2, 0, 2]
    assert [row.group_id for row in rows] == [0, 1, 2, 3]
    assert one.dropped == 3
    assert one.truncated == 0


def test_cut_prompts_are_counted():
    one = stream([1, 99], over_long="truncate-left")
    one.draw(4)
    assert one.truncated == 2
    assert one.dropped == 0


def test_only_over_long_prompts_is_an_error_and_not_a_loop():
    with pytest.raises(DataError, match=r"all 3 prompts are longer than data\.max_prompt_tokens=9"):
        stream([99] * 3, over_long="drop").draw(1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 5, 99]), min_size=1, max_size=7).filter(lambda x: min(x) < 99),
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_resuming_at_every_position_continues_the_run(lengths, draws, seed, shuffle):
    options = {"seed": seed, "shuffle": shuffle, "over_long": "drop"}
    whole = stream(lengths, **options)
    states = [whole.state_dict()]
    steps = []
    for count in draws:
        steps.append(whole.draw(count))
        states.append(whole.state_dict())
    for position, state in enumerate(states):
        again = stream(lengths, **options)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert [again.draw(count) for count in draws[position:]] == steps[position:]
        assert again.state_dict() == whole.state_dict()


@pytest.mark.parametrize("position", range(9))
def test_no_prompt_is_skipped_or_repeated_across_a_resume(position):
    one = stream([1] * 4)
    seen = numbers(one.draw(position))
    again = stream([1] * 4)
    again.load_state_dict(one.state_dict())
    seen += numbers(again.draw(12 - position))
    assert all(sorted(seen[i : i + 4]) == [0, 1, 2, 3] for i in (0, 4, 8))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: stream([1] * 4, mark="b"), "dataset has changed"),
        (lambda: stream([1] * 5), "dataset has changed"),
        (lambda: stream([1] * 4, seed=4), "order of prompts"),
        (lambda: stream([1] * 4, shuffle=False), "order of prompts"),
    ],
)
def test_other_data_than_the_snapshots_is_refused(other, message):
    state = stream([1] * 4).state_dict()
    with pytest.raises(SnapshotError, match=message):
        other().load_state_dict(state)


def test_validation_reads_every_row_once_in_order():
    config = DataConfig(train="x:y", prompt_key="q", max_prompt_tokens=9, over_long="drop")
    rows = list(read_rows(Numbers([1, 99, 2]), Letters(), config))
    assert [(row.group_id, row.columns["number"]) for row in rows] == [(0, 0), (2, 2)]


def test_the_epoch_boundary_is_a_position_like_any_other():
    one = stream([1] * 3)
    one.draw(3)
    assert (one.epoch, one.position) == (1, 0)
