from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlframe.errors import BatchError
from rlframe.testing.models import random_micro
from rlframe_strategies.packing import Inputs, dummy_inputs, make_inputs, to_rows


def rows_of(inputs: Inputs) -> list[list[int]]:
    """The tokens fed, row by row."""
    if inputs.segments is None:
        lengths = [int(n) + 1 - i * inputs.longest for i, n in enumerate(inputs.last)]
        pairs = zip(inputs.input_ids, lengths, strict=True)
        return [row[:n].tolist() for row, n in pairs]
    bounds = inputs.segments.bounds.tolist()
    shared = inputs.segments.shared
    source = torch.arange(bounds[-1]) if shared is None else shared.source
    begins = {}
    for begin, end in zip(bounds, bounds[1:], strict=False):
        begins.setdefault(int(source[end - 1]), (begin, end))
    spans = [begins[int(last)] for last in inputs.last]
    return [inputs.input_ids[0, source[begin:end]].tolist() for begin, end in spans]


def repeat_prompts(micro: TensorDict, groups: int) -> None:
    """Give the rows no more than so many different prompts."""
    for name in ("prompt_ids", "prompt_lengths"):
        micro[name] = micro[name][torch.arange(len(micro)) % groups % len(micro)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    prompt=st.integers(1, 8),
    response=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    packed=st.booleans(),
    whole=st.booleans(),
    groups=st.integers(0, 3),
)
def test_every_response_token_is_predicted_from_the_tokens_before_it(
    rows: int, prompt: int, response: int, seed: int, packed: bool, whole: bool, groups: int
) -> None:
    micro = random_micro(rows, prompt, response, seed)
    if groups:
        repeat_prompts(micro, groups)
    inputs = make_inputs(
        micro, packed=packed, masked=not packed, whole=whole, shared=packed and groups > 0
    )
    fed = rows_of(inputs)
    flat = inputs.input_ids.flatten().tolist()
    positions = inputs.position_ids.flatten().tolist()
    seen = 0
    for i in range(rows):
        p, r = int(micro["prompt_lengths"][i]), int(micro["response_lengths"][i])
        prompt_ids = micro["prompt_ids"][i, prompt - p :].tolist()
        response_ids = micro["response_ids"][i, :r].tolist()
        everything = prompt_ids + response_ids
        assert fed[i] == (everything if whole or not r else everything[:-1])
        assert flat[int(inputs.last[i])] == fed[i][-1]
        for t in range(r):
            where = int(inputs.take[seen])
            assert positions[where] == p + t - 1
            assert flat[where] == everything[p + t - 1]
            assert int(inputs.labels[seen]) == response_ids[t]
            assert int(inputs.put[seen]) == i * response + t
            seen += 1
    assert seen == len(inputs.take) == len(inputs.labels) == len(inputs.put)


def test_padding_is_minimal_and_on_the_right() -> None:
    micro = random_micro(rows=5, prompt=30, response=30, seed=2)
    micro["prompt_lengths"].clamp_(max=3)
    micro["response_lengths"].clamp_(max=4)
    inputs = make_inputs(micro, packed=False, masked=True, whole=False)
    assert inputs.attention_mask is not None
    lengths = micro["prompt_lengths"] + (micro["response_lengths"] - 1).clamp(min=0)
    assert inputs.input_ids.shape == (5, int(lengths.max()))
    assert torch.equal(inputs.attention_mask.sum(1), lengths)
    assert bool((inputs.attention_mask.diff(dim=1) <= 0).all())


def test_rows_of_equal_length_are_not_gathered() -> None:
    micro = random_micro(rows=3, prompt=4, response=4)
    micro["prompt_lengths"].fill_(4)
    micro["response_lengths"].fill_(4)
    inputs = make_inputs(micro, packed=True, masked=False, whole=False)
    assert inputs.segments is None
    assert inputs.input_ids.shape == (3, 7)


def test_a_prompt_of_several_rows_is_fed_once() -> None:
    micro = random_micro(rows=4, prompt=5, response=3)
    micro["prompt_lengths"].fill_(5)
    micro["response_lengths"].copy_(torch.tensor([3, 2, 3, 1]))
    repeat_prompts(micro, 2)
    inputs = make_inputs(micro, packed=True, masked=False, whole=False, shared=True)
    assert inputs.input_ids.shape == (1, 2 * 5 + 2 + 1 + 2 + 0)
    assert inputs.segments is not None
    assert inputs.segments.shared is not None
    assert len(inputs.segments.shared.repeated) == 2 * 5
    assert inputs.take[0] == inputs.take[5]
    assert inputs.last[3] == inputs.take[3]


def test_rows_attend_in_chunks_of_like_lengths() -> None:
    micro = random_micro(rows=6, prompt=2, response=40)
    micro["prompt_lengths"].fill_(1)
    micro["response_lengths"].copy_(torch.tensor([5, 40, 33, 4, 39, 8]))
    segments = make_inputs(micro, packed=True, masked=False, whole=False).segments
    assert segments is not None
    assert segments.longest == 40
    assert segments.bounds.tolist() == [0, 40, 79, 112, 120, 125, 129]
    found = [(c.rows, c.longest, c.tokens) for c in segments.chunks]
    assert found == [(3, 40, 112), (1, 8, 8), (2, 5, 9)]
    assert segments.chunks[2].slots.tolist() == [*range(5), *range(5, 9)]


def test_to_rows_puts_zeros_where_a_row_has_ended() -> None:
    micro = random_micro(rows=4, seed=7)
    inputs = make_inputs(micro, packed=True, masked=False, whole=False)
    out = to_rows(torch.ones(len(inputs.take)), inputs)
    width = micro["response_ids"].shape[1]
    assert torch.equal(out, (torch.arange(width) < micro["response_lengths"][:, None]).float())


def test_an_empty_prompt_is_refused() -> None:
    micro = random_micro()
    micro["prompt_lengths"][1] = 0
    with pytest.raises(BatchError, match="empty prompt"):
        make_inputs(micro, packed=True, masked=False, whole=False)


def test_dummy_inputs_are_consistent() -> None:
    inputs = dummy_inputs(torch.device("cpu"))
    assert to_rows(torch.ones(1), inputs).shape == (1, 1)
    assert int(inputs.last[0]) < inputs.input_ids.numel()
