"""What every cluster must do. Subclass :class:`ClusterKit` and name yours.

Example::

    class TestMine(ClusterKit):
        values = {"cluster": {"name": "mine"}}
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlframe.algorithm import RoleSpec
from rlframe.batching.batch import Batch
from rlframe.build import engine_specs
from rlframe.calling.protocol import Mesh
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError, TrainingError, WorkerError
from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import Cluster, Placement, ResourcePool, WorkerGroup
from rlframe.interfaces.transfer import TransferEngine
from rlframe.testing.echo import Counter

__all__ = ["ClusterKit", "Started"]

_LONGEST_S = 60.0
"""Longest wait for anything that has to happen at all."""


@dataclass
class Started:
    """A cluster with its groups."""

    cluster: Cluster
    groups: dict[str, WorkerGroup]
    transfer: TransferEngine

    def call(self, role: str, method: str, *args: Any) -> Any:
        """The result of a call, or its error."""
        return self.groups[role].call(method, *args).result(timeout=_LONGEST_S)

    def batch(self, rows: int = 5) -> Batch:
        """Rows of 1, 2, ... response tokens."""
        columns = {
            "group_ids": np.arange(rows),
            "prompt_ids": [[7]] * rows,
            "response_ids": [list(range(10 * n, 11 * n + 1)) for n in range(rows)],
        }
        return Batch.from_columns(columns, transfer=self.transfer)


class ClusterKit:
    """Tests of one cluster with engines that hold no model.

    ``values`` are config values with the cluster's name and options among them. A cluster that
    claims "processes" gets two pools, of ``ranks`` devices and of one; else one pool of one.
    """

    values: ClassVar[Mapping[str, Any]] = {}
    ranks: ClassVar[int] = 2

    @pytest.fixture(scope="class")
    @classmethod
    def started(cls) -> Iterator[Started]:
        """A cluster for the tests that leave it whole."""
        with cls().start() as started:
            yield started

    @contextmanager
    def start(self, **options: Any) -> Iterator[Started]:
        """Start a cluster with further options; policy and reference share a pool."""
        section = {**self.values["cluster"], **options}
        more = {
            "algo": "grpo",
            "model.engine": "rlframe.testing.echo:EchoEngine",
            "reward": "exact",
            **{key: value for key, value in self.values.items() if key != "cluster"},
        }
        config = load_config(PluginHost().load(), Asked(values={**more, "cluster": section})).config
        cluster: Cluster = config.cluster.load()(config.cluster.config)
        algorithm = config.algo.load()(config.algo.config)
        policy = engine_specs(config, algorithm, 1.0, 8)["policy"]
        transfer: TransferEngine = config.transfer.load()(config.transfer.config)
        placement = self.placement("processes" in cluster.capabilities)
        specs = {
            role: type(policy)(**{**vars(policy), "role": RoleSpec(role)})
            for role in placement.pool_of
        }
        try:
            groups = cluster.start(placement, specs, None, config, transfer)
            yield Started(cluster, groups, transfer)
        finally:
            transfer.close()
            cluster.close()

    def placement(self, processes: bool) -> Placement:
        """Where the roles go."""
        ranks = self.ranks if processes else 1
        pools = {"train": ResourcePool("train", 1, ranks)}
        pool_of = {"policy": "train", "reference": "train"}
        if processes:
            pools["other"] = ResourcePool("other", 1, 1)
            pool_of["critic"] = "other"
        mesh_of = {role: Mesh(dp=pools[pool].size) for role, pool in pool_of.items()}
        return Placement(pools, pool_of, mesh_of)

    # --- what is checked ----------------------------------------------------------------------

    def test_every_rank_is_told_who_it_is(self, started: Started) -> None:
        """Rank, world, host, seeds and threads; ranks draw different random numbers."""
        for role, group in started.groups.items():
            told = started.call(role, "who")
            assert [one["rank"].rank for one in told] == list(range(group.mesh.size))
            assert {one["rank"].world for one in told} == {group.mesh.size}
            assert {one["role"] for one in told} == {role}
            assert {one["rank"].host for one in told} == {socket.gethostname()}
            assert all(
                one["threads"] == one["rank"].threads or not one["rank"].threads for one in told
            )
            assert len({one["drawn"] for one in told}) == group.mesh.size
            if group.mesh.size > 1:
                assert len({one["rank"].init_method for one in told} - {None}) == 1

    def test_roles_of_a_pool_share_processes(self, started: Started) -> None:
        """One process a rank and pool; each sees its peers."""
        pids = {r: [one["pid"] for one in started.call(r, "who")] for r in started.groups}
        assert pids["policy"] == pids["reference"]
        assert len(set(pids["policy"])) == len(pids["policy"])
        assert {"policy", "reference"} <= set(started.call("policy", "who")[0]["peers"])
        if "critic" in pids:
            assert not set(pids["critic"]) & set(pids["policy"])

    def test_calls_to_a_pool_keep_their_order(self, started: Started) -> None:
        """Across its roles too, without waiting in between."""
        start = len(started.call("policy", "note", -1)[0])
        roles = ["policy", "reference", "reference", "policy"] * 5
        futures = [started.groups[r].call("note", n) for n, r in enumerate(roles)]
        seen = [future.result(timeout=_LONGEST_S) for future in futures]
        assert all(rank[start:] == list(range(len(roles))) for rank in seen[-1])

    def test_calls_to_different_pools_overlap(self, started: Started, tmp_path: Path) -> None:
        """Each of two calls waits for what the other does."""
        if "critic" not in started.groups:
            pytest.skip("this cluster has one pool")
        a, b = str(tmp_path / "a"), str(tmp_path / "b")
        first = started.groups["policy"].call("meet", a, b, 30.0)
        second = started.groups["critic"].call("meet", b, a, 30.0)
        assert not first.done() or not second.done()
        assert all(first.result(timeout=_LONGEST_S))
        assert all(second.result(timeout=_LONGEST_S))

    def test_columns_come_back_in_order(self, started: Started) -> None:
        """As handles; a rank made its own rows, from columns that it read itself."""
        batch = started.batch()
        made = batch.add_handles(started.call("policy", "infer", batch))
        assert np.array_equal(made.lengths("values"), batch.lengths("response_ids"))
        assert made["values"].tolist() == (2 * batch["response_ids"].float()).tolist()
        assert made["scores"].tolist() == batch.lengths("response_ids").tolist()
        rows = [i for rank in started.call("policy", "rows", batch) for i in rank]
        assert sorted(rows) == list(range(len(batch)))

    def test_columns_of_one_role_are_read_by_another(self, started: Started) -> None:
        """Also in another pool, and after rows were selected."""
        batch = started.batch()
        batch = batch.add_handles(started.call("policy", "infer", batch)).take([3, 1, 4])
        other = "critic" if "critic" in started.groups else "reference"
        found = started.call(other, "rows", batch)
        assert sorted(i for rank in found for i in rank) == [1, 3, 4]

    def test_an_exception_names_where_it_was(self, started: Started) -> None:
        """``WorkerError`` with role, rank, host and remote traceback; the group goes on."""
        last = started.groups["policy"].mesh.size - 1
        with pytest.raises(WorkerError, match="LookupError: 'told to fail'|LookupError: told") as e:
            started.call("policy", "fail", "python", last)
        assert (e.value.role, e.value.rank) == ("policy", last)
        assert e.value.host == socket.gethostname()
        assert "in fail" in e.value.remote
        with pytest.raises(TrainingError) as own:
            started.call("policy", "fail", "rlframe", last)
        assert str(own.value) == "told to fail"
        assert started.call("policy", "echo", 3) == 3

    def test_a_call_never_raises_by_itself(self, started: Started) -> None:
        """What is wrong with it comes from the future."""
        future = started.groups["policy"].call("rows", "no batch")
        assert isinstance(future, Future)
        with pytest.raises(Exception, match="batch"):
            future.result(timeout=_LONGEST_S)

    def test_any_object_can_be_hosted(self, started: Started) -> None:
        """Its state stays; columns that it makes come back as handles."""
        group = started.cluster.host("counter", partial(Counter, 10))
        assert [group.call("add", n).result(timeout=_LONGEST_S) for n in (1, 2)] == [11, 13]
        value, handles = group.call("columns", 4).result(timeout=_LONGEST_S)
        batch = started.batch(4).select(["group_ids"]).add_handles([(handles, np.arange(4))])
        assert (value, batch.lengths("response_ids").tolist()) == (13, [1, 2, 3, 4])
        assert batch["response_ids"][3].tolist() == [6, 7, 8, 9]
        apart = group.call("pid").result(timeout=_LONGEST_S) != os.getpid()
        assert apart == ("processes" in started.cluster.capabilities)
        group.close()

    def test_a_late_call_fails_and_shows_stacks(self, capfd: pytest.CaptureFixture[str]) -> None:
        """After ``call_timeout_s``: role, method, limit; every worker's stack on stderr.

        Closing the cluster ends every process, and may be done twice.
        """
        with self.start(call_timeout_s=3.0) as started:
            pids = {one["pid"] for r in started.groups for one in started.call(r, "who")}
            with pytest.raises(WorkerError, match=r"hang is not done after 3 s") as e:
                started.call("policy", "hang", 600.0)
            assert e.value.role == "policy"
            assert e.value.mendable
            assert "hang_in_a_loop" in e.value.remote
            assert "hang_in_a_loop" in capfd.readouterr().err
            started.cluster.close()
            wait_until_gone(pids - {os.getpid()})

    def test_a_dead_worker_ends_its_group(self) -> None:
        """In seconds, by name; its peers are killed, another pool goes on."""
        with self.start() as started:
            if "processes" not in started.cluster.capabilities:
                pytest.skip("a worker of this cluster is the controller itself")
            last = started.groups["policy"].mesh.size - 1
            pids = [one["pid"] for one in started.call("policy", "who")]
            with pytest.raises(WorkerError, match="died") as e:
                started.groups["policy"].call("die", last).result(timeout=30.0)
            assert (e.value.role, e.value.rank) == ("policy", last)
            with pytest.raises(WorkerError, match="died"):
                started.call("reference", "nothing")
            assert started.call("critic", "echo", 5) == 5
            wait_until_gone(pids)

    def test_what_does_not_fit_is_an_error(self) -> None:
        """A ``ConfigError`` with the numbers of what was asked and what there is."""
        values = {**self.values, "pools": {"train": {"nodes": 1, "devices": 4000}}}
        config = load_config(PluginHost().load(), Asked(values=values)).config
        cluster: Cluster = config.cluster.load()(config.cluster.config)
        mapper = config.mapper.load()(config.mapper.config)
        try:
            with pytest.raises(ConfigError, match=r"1 x 4000.*\d"):
                mapper.place(["policy"], config, cluster.info())
        finally:
            cluster.close()


def wait_until_gone(pids: Any) -> None:
    """Wait for processes to end; fails after a while."""
    import time

    end = time.monotonic() + _LONGEST_S
    left = set(pids)
    while left and time.monotonic() < end:
        left = {pid for pid in left if alive(pid)}
        time.sleep(0.05)
    assert not left


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
