"""Waiting groups come back exactly from a snapshot, with every column."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rlframe import Column
from rlframe.batching.assemble import join_entries, pack_groups
from rlframe.batching.columns import make_schema
from rlframe.collecting.buffer import Buffer
from rlframe.collecting.collected import Collected, Gathered
from rlframe.errors import SnapshotError
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.requests import Episode, Group, Request, Row, Segment
from rlframe.snapshots.snapshot import decode_state, encode_state

SCHEMA = make_schema([Column("image", "B", "object", "data", "anything")])


def segment(seed, tokens):
    rng = np.random.default_rng(seed)
    logprobs = np.float32(-rng.random(tokens)).tolist()
    return Segment([1, 2], rng.integers(9, size=tokens).tolist(), [True] * tokens, logprobs,
                   rng.integers(3, size=tokens).tolist(), [0] * tokens)  # fmt: skip


def a_group(number, *, token_rewards=False, image=None):
    row = Row((1, 2), {"prompt": [{"role": "user", "content": "p\ud800"}]}, number, source="f:4")
    episodes = []
    for position in range(2):
        rows = [segment(10 * number + position + s, 3 + position) for s in range(1 + number % 2)]
        if token_rewards:
            rows[0].token_rewards = [0.1] * (3 + position)
        request = Request((1, 2), group_id=number, episode_id=10 * number + position)
        columns = {} if image is None else {"image": image}
        parts = {"a": 1 / 3} if number < 2 else {"a": 0.5, "b/c": 2.0}
        episodes.append(Episode(request, rows, "stop", f"t{number}", sum(parts.values()), parts,
                                columns))  # fmt: skip
    return Group(row, episodes)


def entries(groups):
    transfer = LocalTransfer()
    columns, summaries = pack_groups(groups, SCHEMA)
    found = Collected.of(Gathered(summaries), transfer.put(columns), SCHEMA, transfer)
    return found.accepted


GROUPS = (
    lambda: [a_group(0), a_group(1)],
    lambda: [a_group(2, token_rewards=True)],
    lambda: [a_group(3, image={"pixels": np.arange(4), "of": [1, None]})],
)


def everything():
    return [entry for groups in GROUPS for entry in entries(groups())]


def through_disk(state):
    value, tensors = encode_state(state)
    return decode_state(json.loads(json.dumps(value)), {n: t.clone() for n, t in tensors.items()})


def same(found, expected):
    assert found.columns == expected.columns
    for name in expected:
        one, two = found[name], expected[name]
        if isinstance(two, list):
            assert str(one) == str(two), name
        else:
            assert torch.equal(one.nan_to_num(-7), two.nan_to_num(-7)), name


@pytest.mark.parametrize("save", [through_disk, lambda state: state])
def test_waiting_groups_come_back_exactly(save):
    before, after = Buffer(), Buffer()
    before.put(everything())
    state = save(before.state_dict())
    assert len(state["groups"]) == 3, "one run of groups for each set of columns"
    after.load_state_dict(state, schema=SCHEMA, transfer=LocalTransfer())
    expected, found = before.take(4), after.take(4)
    for one, two in zip(found, expected, strict=True):
        assert (one.group_id, one.source, one.episodes) == (two.group_id, two.source, two.episodes)
        same(one.batch, two.batch)
    same(join_entries(found), join_entries(expected))


def test_a_buffer_of_nothing_comes_back():
    buffer = Buffer()
    buffer.load_state_dict(Buffer().state_dict(), schema=SCHEMA, transfer=LocalTransfer())
    assert len(buffer) == 0


def spoil(state, change):
    run = state["groups"][0]
    if change == "episode":
        run["groups"][0]["episodes"][0]["novelty"] = 1
    elif change == "group":
        del run["groups"][0]["source"]
    elif change == "run":
        run["row"] = {}
    else:
        run["columns"]["response_idz"] = run["columns"].pop("response_ids")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("episode", "the snapshot's EpisodeSummary has other fields.*novelty"),
        ("group", "the snapshot's GroupSummary has other fields.*source"),
        ("run", "the snapshot's run of groups has other fields.*row"),
        ("column", "unknown column 'response_idz'. Did you mean 'response_ids'"),
    ],
)
def test_groups_of_another_version_are_refused(change, message):
    buffer = Buffer()
    buffer.put(entries([a_group(0)]))
    state = buffer.state_dict()
    spoil(state, change)
    with pytest.raises(SnapshotError, match=message):
        Buffer().load_state_dict(state, schema=SCHEMA, transfer=LocalTransfer())
