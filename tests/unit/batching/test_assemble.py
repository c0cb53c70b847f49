"""The batch of a step is the same whether its groups were collected together or apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rlframe import BatchError, Column
from rlframe.batching.assemble import batch_of, join_entries, pack_groups, part_names
from rlframe.batching.columns import make_schema
from rlframe.collecting.collected import Collected, Gathered
from rlframe.collecting.entry import EpisodeSummary, GroupSummary
from rlframe.interfaces.transfer import LocalTransfer
from rlframe.requests import Episode, Group, Request, Row, Segment

SCHEMA = make_schema(
    [
        Column("image", "B", "object", "data", "anything"),
        Column("label", "B", "int64", "data", "a number"),
    ]
)


def segment(tokens, *, mask=None, version=0, token_rewards=None):
    count = len(tokens)
    return Segment([1, 2], list(tokens), mask or [True] * count, [-0.5] * count,
                   [version] * count, [0] * count, token_rewards)  # fmt: skip


def group(number, episodes):
    made = []
    for position, fields in enumerate(episodes):
        rows = fields.pop("rows", [segment([3, 4])])
        request = Request((1,), group_id=number, episode_id=100 * number + position)
        made.append(Episode(request, rows, "stop", **fields))
    return Group(Row((1,), {"prompt": f"q{number}"}, number), made[::-1])


def scored(**parts):
    return {"reward": sum(parts.values()), "reward_parts": parts}


def together():
    return [
        group(3, [scored(a=0.1), scored(a=0.2, b=1.0)]),
        group(1, [{"rows": [segment([5]), segment([6, 7, 8], token_rewards=[1.0, 0, 2.0])],
                   **scored(a=1 / 3)}]),
        group(2, [{**scored(c=2.0), "columns": {"image": [1, None]}}]),
    ]  # fmt: skip


def entries(groups, transfer):
    columns, summaries = pack_groups(groups, SCHEMA)
    return Collected.of(Gathered(summaries), transfer.put(columns), SCHEMA, transfer).accepted


def same(found, expected):
    assert set(found.columns) == set(expected.columns)
    for name in expected:
        if isinstance(expected[name], list):
            assert found[name] == expected[name], name
        else:
            assert torch.equal(found[name].nan_to_num(-7), expected[name].nan_to_num(-7)), name


@pytest.mark.parametrize("parts", [[[0, 1, 2]], [[2], [0, 1]], [[1], [2], [0]]])
def test_groups_collected_apart_make_the_batch_of_groups_collected_together(parts):
    expected = batch_of(together(), schema=SCHEMA)
    transfer = LocalTransfer()
    groups = together()
    found = [e for part in parts for e in entries([groups[i] for i in part], transfer)]
    batch = join_entries(found)
    same(batch, expected)
    assert batch["group_ids"].tolist() == [1, 1, 2, 3, 3]
    assert batch["episode_ids"].tolist() == [100, 100, 200, 300, 301]
    assert part_names(found) == ["a", "b", "c"]
    third = [1 / 3, math.nan, math.nan]
    wanted = np.array([third, third, [math.nan, math.nan, 2.0], [0.1, math.nan, math.nan],
                       [0.2, 1.0, math.nan]], np.float32)  # fmt: skip
    assert np.array_equal(batch["reward_parts"].numpy(), wanted, equal_nan=True)
    assert batch["token_rewards"][1].tolist() == [1.0, 0.0, 2.0]
    assert batch["token_rewards"].sum() == 3.0
    if len(parts) == 1:
        kept = {h.key for h in batch.handles() if h.column != "reward_parts"}
        assert len(kept) == len(batch.columns) - 1, "one block a column"


def test_episodes_without_a_reward_leave_the_column_out():
    transfer = LocalTransfer()
    apart = [*entries([group(1, [scored(a=1.0)])], transfer), *entries([group(2, [{}])], transfer)]
    batch = join_entries(apart)
    assert "rewards" not in batch
    assert "reward_parts" not in batch
    assert batch["response_text"] == ["", ""]


def test_a_number_that_some_groups_lack_is_an_error():
    transfer = LocalTransfer()
    labelled = group(1, [{**scored(a=1.0), "columns": {"label": 3}}])
    apart = [*entries([labelled], transfer), *entries([group(2, [scored(a=1.0)])], transfer)]
    with pytest.raises(BatchError, match="group 2 have no column 'label'"):
        join_entries(apart)


def test_a_summary_has_the_oldest_and_newest_weights_and_sampled_tokens():
    rows = [segment([1, 2], mask=[True, False], version=4), segment([3], version=6)]
    rows[0].versions[1] = -1
    episode = group(1, [{"rows": rows}]).episodes[0]
    assert EpisodeSummary.of(episode).versions == (4, 6)
    assert EpisodeSummary.of(episode).length == 2
    summary = GroupSummary.of(group(1, [{"rows": rows}, scored(a=1.0)]))
    assert summary.oldest_version == 0
    assert (summary.rows, summary.rewards) == (3, [1.0])
    assert [e.episode_id for e in summary.by_row()] == [100, 100, 101]
    bare = segment([1], version=-1)
    assert GroupSummary.of(group(1, [{"rows": [bare]}])).oldest_version == -1


def test_no_groups_make_no_batch():
    with pytest.raises(BatchError, match="no episode"):
        join_entries([])
    with pytest.raises(BatchError, match="no episode"):
        batch_of([], schema=SCHEMA)
