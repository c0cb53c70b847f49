"""Two Ray nodes on one machine: ranks on both, what does not fit on one, nodes that come later."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import rlframe
from rlframe.errors import ConfigError
from rlframe.interfaces.cluster import ResourcePool
from tests.e2e.small import make_model, make_questions, options
from tests.e2e.test_ray_ends import Driver, command, descendants

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes with one CPU each: with ``cluster.cpus=0.5``, two devices each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def on(nodes, **more):
    return {"name": "ray", "address": nodes.address, "cpus": 0.5, **more}


def arguments(tmp_path, nodes, **more):
    model, questions = make_model(tmp_path / "m"), make_questions(tmp_path / "q.jsonl")
    return options(tmp_path, model, questions, cluster=on(nodes), **more)


def test_ranks_on_two_nodes_train_together(nodes, tmp_path):
    pools = {"train": {"nodes": 2, "devices": 1}}
    more = {"strategy": "fsdp", "pools": pools, "steps": 1}
    done = rlframe.fit(**arguments(tmp_path, nodes, **more))
    assert done.summary["status"] == "finished"
    assert not ray.is_initialized()


def test_what_fits_on_all_nodes_but_on_none_alone_is_an_error_at_once(nodes, tmp_path):
    started = time.monotonic()
    pools = {"train": {"nodes": 1, "devices": 3}}
    with pytest.raises(ConfigError, match=r"train 1 x 3.*2 x 2|train 1 x 3.*2 nodes") as caught:
        rlframe.fit(**arguments(tmp_path, nodes, strategy="fsdp", pools=pools))
    assert "pools do not fit" in str(caught.value)
    assert time.monotonic() - started < 60.0
    assert not ray.is_initialized()


def test_a_wrong_address_is_one_clear_line(tmp_path, nodes):
    wrong = arguments(tmp_path, nodes)
    wrong["cluster"] = {"name": "ray", "address": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match=r"cluster.address=127.0.0.1:1: no Ray cluster there"):
        rlframe.fit(**wrong)


def test_with_wait_s_a_node_that_comes_later_is_used(nodes):
    from rlframe_plugins.clusters.ray.nodes import Need, wait_for_room
    from rlframe_plugins.clusters.ray.session import Session

    session = Session(nodes.address)
    try:
        pool, need = ResourcePool("train", 1, 4), Need("CPU", 0.5)
        with pytest.raises(ConfigError, match=r"train 1 x 4 .*2 nodes"):
            wait_for_room([pool], need, 0.0)
        with ThreadPoolExecutor(1) as beside:
            waiting = beside.submit(wait_for_room, [pool], need, 120.0)
            nodes.add_node(num_cpus=2)
            assert len(waiting.result()["train"]) == 1
    finally:
        session.close()


def test_a_killed_driver_leaves_nothing_on_a_cluster_that_goes_on(nodes, tmp_path):
    """Its actors and its places end with it; the processes of the cluster stay."""
    from rlframe_plugins.clusters.ray.nodes import Need, read_nodes
    from rlframe_plugins.clusters.ray.session import Session

    where = [f"cluster.address={nodes.address}", "cluster.cpus=0.5"]
    pools = ["--strategy", "fsdp", "pools.train.devices=2", "steps=100000"]
    driver = Driver(tmp_path, *where, *pools)
    try:
        driver.wait_for_metrics()
        working = {pid for pid in descendants(os.getpid()) if "ray::Worker" in command(pid)}
        assert len(working) >= 3, "two ranks and a collector"
    finally:
        driver.process.kill()
        driver.process.wait(10)
    driver.assert_nothing_left(working)
    session = Session(nodes.address)
    try:
        need = Need("CPU", 0.5)
        end = time.monotonic() + 60.0
        while any(node.free < node.devices for node in read_nodes(need)):
            assert time.monotonic() < end, read_nodes(need)
            time.sleep(0.1)
    finally:
        session.close()
