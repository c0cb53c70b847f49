"""verl's side of the controller benchmark: RayWorkerGroup and DataProto, one Ray, six workers."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import ray
import torch
from controller_shared import BACK, COLUMNS, CPUS, ONE, Deserialised, Peak, arrays, serve, timed
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import (
    Dispatch,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

METHOD = "VERL_DATAPROTO_SERIALIZATION_METHOD"
MESH = make_nd_compute_dataproto_dispatch_fn(mesh_name="ranks")


class Echo(Worker):
    """Does nothing but move columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._register_dispatch_collect_info("ranks", dp_rank=self.rank, is_collect=True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def nothing(self) -> None:
        """The cheapest call there is."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def serialise_by(self, method: str) -> None:
        os.environ[METHOD] = method

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def back(self, data: DataProto) -> DataProto:
        """Every column again, as a new one."""
        return DataProto.from_dict({BACK[name]: data.batch[name] for name in COLUMNS})

    @register(dispatch_mode=MESH)
    def back_by_mesh(self, data: DataProto) -> DataProto:
        """The same, dispatched as verl's own trainers do."""
        return DataProto.from_dict({BACK[name]: data.batch[name] for name in COLUMNS})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def one(self, data: DataProto) -> DataProto:
        """Read everything, return one column."""
        return DataProto.from_dict({ONE: 2 * data.batch["rollout_logprobs"]})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def pull(self, data: DataProto) -> int:
        """Read everything."""
        return sum(data.batch[name].numel() for name in COLUMNS)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def make(self, data: DataProto) -> DataProto:
        """The six columns of these rows."""
        return DataProto.from_dict(tensors(len(data)))


def tensors(rows: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays(rows).items()}


class Side:
    """The orders of the benchmark."""

    def __init__(self, pair: RayWorkerGroup, four: RayWorkerGroup, rows: int) -> None:
        self.pair, self.four, self.rows = pair, four, rows
        self.columns, self.counted = tensors(rows), Deserialised()
        for name, values in self.pair.back(self.data()).batch.items():
            assert torch.equal(values, self.columns[name.removesuffix("_back")]), name

    def data(self) -> DataProto:
        return DataProto.from_dict(self.columns)

    def calls(self, count: int) -> float:
        (seconds,) = timed(1, lambda: [self.pair.nothing() for _ in range(count)])
        return count / seconds

    def round_trip(self, times: int, mesh: bool = False, method: str = "") -> list[float]:
        os.environ[METHOD] = method
        self.pair.serialise_by(method)
        call = self.pair.back_by_mesh if mesh else self.pair.back
        try:
            return timed(times, lambda: call(self.data()))
        finally:
            os.environ[METHOD] = ""
            self.pair.serialise_by("")

    def one_column(self, times: int) -> list[float]:
        return timed(times, lambda: self.pair.one(self.data()))

    def pull(self, times: int) -> list[float]:
        data = self.data()
        return timed(times, lambda: self.four.pull(data))

    def scale(self, rows: int) -> dict[str, int]:
        """Columns made by workers, echoed by workers: what of it passes this process."""
        before = self.counted.bytes
        with Peak() as peak:
            ids = DataProto.from_dict({"group_ids": torch.from_numpy(np.arange(rows))})
            data = ids.union(self.pair.make(ids))
            made = self.counted.bytes
            data = data.union(self.pair.back(data))
        assert len(data.batch.keys()) == 1 + 2 * len(COLUMNS)
        return {
            "made": made - before,
            "there_and_back": self.counted.bytes - made,
            "peak": peak.bytes,
        }

    def orders(self) -> dict[str, Any]:
        names = ("calls", "round_trip", "one_column", "pull", "scale")
        return {name: getattr(self, name) for name in names}


def group(workers: int) -> RayWorkerGroup:
    pool = RayResourcePool([workers], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(Echo)), device_name="cpu")


def main() -> None:
    held: dict[str, Any] = {}

    def run(rows: int) -> list[str]:
        held.update(Side(*groups, rows).orders())
        return sorted(held)

    with tempfile.TemporaryDirectory(prefix="ctl-", dir="/tmp") as folder:
        ray.init(
            address="local",
            num_cpus=CPUS,
            include_dashboard=False,
            _temp_dir=folder,
            runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(__file__)}},
        )
        groups = group(2), group(4)
        held["open"] = run
        try:
            serve(held)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
