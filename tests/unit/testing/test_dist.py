from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch import distributed as dist

from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import RankError, join, run_ranks

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("world", [1, 3])
def test_results_come_back_by_rank(world: int) -> None:
    def fn(rank: RankInfo, extra: int) -> tuple[int, float, int]:
        join(rank)
        total = torch.tensor([float(rank.rank + extra)])
        dist.all_reduce(total)
        return rank.rank, float(total), torch.get_num_threads()

    expected = sum(10 + r for r in range(world))
    assert run_ranks(fn, world, 10) == [(r, expected, 1) for r in range(world)]


def test_a_failing_rank_ends_the_others_and_everything_printed_is_shown() -> None:
    def fn(rank: RankInfo) -> None:
        print(f"hello from {rank.rank}")
        join(rank)
        if rank.rank == 1:
            raise ValueError("the reason")
        dist.barrier()

    with pytest.raises(RankError) as caught:
        run_ranks(fn, 3, timeout_s=60)
    text = str(caught.value)
    assert "rank 1 failed of 3 ranks" in text
    assert "ValueError: the reason" in text
    assert all(f"hello from {rank}" in text for rank in range(3))


def test_a_killed_rank_is_named() -> None:
    def fn(rank: RankInfo) -> None:
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        run_ranks(fn, 2)


def test_a_rank_that_never_ends_is_killed_and_its_stack_shown() -> None:
    pids_at = time.monotonic()

    def waits_for_ever(rank: RankInfo) -> None:
        while rank.rank == 0:
            time.sleep(0.05)

    with pytest.raises(RankError, match="no end after 1 s of rank 0") as caught:
        run_ranks(waits_for_ever, 2, timeout_s=1)
    assert "waits_for_ever" in str(caught.value)
    assert time.monotonic() - pids_at < 60
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_group_of_the_parent_is_not_the_ranks() -> None:
    dist.init_process_group(
        "gloo",
        store=dist.HashStore(),
        rank=0,
        world_size=1,  # type: ignore[attr-defined]
    )
    try:

        def fn(rank: RankInfo) -> int:
            assert not dist.is_initialized()
            join(rank)
            return dist.get_world_size()

        assert run_ranks(fn, 2) == [2, 2]
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_a_result_that_does_not_pickle_is_an_error() -> None:
    with pytest.raises(RankError, match="pickle"):
        run_ranks(lambda rank: lambda: rank, 1)
