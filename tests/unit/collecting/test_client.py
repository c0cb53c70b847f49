"""Rows dealt over several collectors come back as one; the first failure is told at once."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from rlframe import Algorithm
from rlframe.batching.assemble import join_entries, pack_groups
from rlframe.calling.protocol import Mesh
from rlframe.collecting.client import CollectorClient, all_of
from rlframe.collecting.collected import Gathered
from rlframe.collecting.entry import GroupSummary
from rlframe.errors import WorkerError
from rlframe.interfaces.cluster import WorkerGroup
from rlframe.interfaces.transfer import CountedTransfer, LocalTransfer
from rlframe.requests import Episode, Group, Request, Row, Segment

SCHEMA = Algorithm().schema()


def group_of(row: Row, samples: int = 2) -> Group:
    tokens = [7] * (1 + row.group_id % 3)
    count = len(tokens)
    episodes = [
        Episode(
            Request(row.prompt_ids, group_id=row.group_id, episode_id=10 * row.group_id + n),
            [Segment([1], tokens, [True] * count, [-1.0] * count, [4] * count, [0] * count)],
            "stop",
            f"answer {row.group_id}",
            reward=float(n),
            reward_parts={"exact": float(n)},
        )
        for n in range(samples)
    ]
    return Group(row, episodes)


class Host(WorkerGroup):
    """A collector whose answers come when they are let go."""

    role, mesh = "collector", Mesh()

    def __init__(self, transfer, *, refuses=()):
        self.transfer, self.refuses = transfer, set(refuses)
        self.asked: list[tuple[Future, object]] = []
        self.open = True

    def call(self, method, *args):
        future: Future = Future()
        self.asked.append((future, getattr(self, method)(*args)))
        return future

    def collect(self, rows):
        kept = [group_of(row) for row in rows if row.group_id not in self.refuses]
        columns, summaries = pack_groups(kept, SCHEMA)
        gathered = Gathered(summaries, refused=[r.group_id for r in rows if r.group_id in
                                                self.refuses], skipped_episodes=1)  # fmt: skip
        # The first collector's router has lost a replica; the other one has not seen it yet.
        gathered.routed = {"retries": 2.0}
        gathered.router = {"replicas_up": 2.0 - min(r.group_id % 2 for r in rows), "waiting": 1.0}
        return gathered, self.transfer.put(columns)

    def validate(self, rows):
        return [GroupSummary.of(group_of(row, 1)) for row in rows]

    def client(self):
        raise NotImplementedError

    def close(self):
        self.open = False

    def answer(self):
        future, outcome = self.asked.pop(0)
        future.set_result(outcome)


def rows(*numbers):
    return [Row((1,), {"prompt": f"q{n}"}, n) for n in numbers]


def start(count, **options):
    transfer = LocalTransfer()
    hosts = [Host(transfer, **options) for _ in range(count)]
    return CollectorClient(hosts, SCHEMA, CountedTransfer(transfer)), hosts


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_groups_of_several_collectors_are_one_collection(count):
    client, hosts = start(count, refuses=[6])
    found = client.collect(rows(*range(4, 8)))
    asked = [host for host in hosts if host.asked]
    assert len(asked) == min(count, 4), "a collector without rows is not called"
    for host in reversed(asked):
        assert not found.done()
        host.answer()
    collected = found.result(timeout=0)
    assert [entry.group_id for entry in collected.accepted] == [4, 5, 7]
    assert collected.refused == [6]
    assert collected.skipped_episodes == len(asked)
    assert collected.routed == {"retries": 2.0 * len(asked)}
    fewest = 2.0 if count == 1 else 1.0
    assert collected.router == {"replicas_up": fewest, "waiting": len(asked)}
    for entry in collected.accepted:
        assert entry.batch["response_text"] == [f"answer {entry.group_id}"] * 2
        assert entry.batch["group_ids"].tolist() == [entry.group_id] * 2
        assert entry.oldest_version == 4
    assert join_entries(collected.accepted)["rewards"].tolist() == [0.0, 1.0] * 3


def test_nothing_accepted_is_no_batch():
    client, hosts = start(1, refuses=[0, 1])
    found = client.collect(rows(0, 1))
    hosts[0].answer()
    assert found.result(timeout=0).accepted == []
    assert found.result(timeout=0).refused == [0, 1]


def test_validation_comes_in_the_order_of_its_rows():
    client, hosts = start(2)
    found = client.validate(rows(-5, -9, -7))
    for host in hosts:
        host.answer()
    assert [group.group_id for group in found.result(timeout=0)] == [-5, -9, -7]


def test_a_dead_collector_is_told_while_others_still_play():
    client, hosts = start(2)
    found = client.collect(rows(1, 2))
    hosts[1].asked[0][0].set_exception(WorkerError("collector-1", 0, "here", "died"))
    with pytest.raises(WorkerError, match="died"):
        found.result(timeout=0)
    hosts[0].answer()
    with pytest.raises(WorkerError, match="died"):
        found.result(timeout=0)


def test_closing_ends_every_collector():
    client, hosts = start(3)
    client.close()
    assert [host.open for host in hosts] == [False] * 3


def test_a_cancelled_part_leaves_nobody_waiting():
    one: Future = Future()
    whole = all_of([one], list)
    assert one.cancel()
    assert whole.done()
    assert whole.exception(timeout=0) is not None


def test_a_mistake_in_combining_is_told():
    def wrong(parts):
        raise KeyError(parts)

    with pytest.raises(KeyError):
        all_of([], wrong)
    done: Future = Future()
    done.set_result(1)
    with pytest.raises(KeyError):
        all_of([done], wrong).result(timeout=0)


def test_parts_that_end_together_make_one_whole():
    """Every part is settled from a thread of its own."""
    for _ in range(20):
        parts: list[Future] = [Future() for _ in range(8)]
        whole = all_of(parts, list)
        gate = threading.Barrier(len(parts))

        def settle(number, parts=parts, gate=gate):
            gate.wait(timeout=20)
            parts[number].set_result(number)

        threads = [threading.Thread(target=settle, args=(n,)) for n in range(len(parts))]
        for thread in threads:
            thread.start()
        assert whole.result(timeout=20) == list(range(8))
        for thread in threads:
            thread.join(timeout=20)
