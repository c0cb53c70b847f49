"""Our side of the controller benchmark: one Ray, a pool of two workers and one of four."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from controller_profile import profile
from controller_shared import (
    BACK,
    COLUMNS,
    CPUS,
    ONE,
    Deserialised,
    Peak,
    arrays,
    serve,
    timed,
)

from rlframe.algorithm import RoleSpec
from rlframe.batching.batch import Batch
from rlframe.batching.columns import Column, make_schema
from rlframe.batching.packed import Packed
from rlframe.build import engine_specs
from rlframe.calling.protocol import DP_METRIC, THREE_D_PROTO, Mesh, protocol
from rlframe.config.load import Asked, load_config
from rlframe.host.host import PluginHost
from rlframe.interfaces.cluster import Placement, ResourcePool
from rlframe.testing.echo import EchoEngine

_AXIS = {"prompt_ids": "P", "response_ids": "R", "rollout_logprobs": "R"}
SCHEMA = make_schema(
    Column(column, f"B{_AXIS.get(name, 'S')}", COLUMNS[name][0], "benchmark", "numbers")
    for name in COLUMNS
    for column in (name, BACK[name])
)
WORKERS = {"policy": 2, "critic": 4}


class Echo(EchoEngine):
    """Does nothing but move columns."""

    @protocol(THREE_D_PROTO)
    def back(self, batch: Batch) -> Mapping[str, Packed]:
        """Every column again, as a new one."""
        return {BACK[name]: batch.packed(name) for name in COLUMNS}

    @protocol(THREE_D_PROTO)
    def one(self, batch: Batch) -> Mapping[str, Packed]:
        """Read everything, return one column."""
        read = {name: batch.packed(name) for name in COLUMNS}
        found = read["rollout_logprobs"]
        return {ONE: Packed(2 * found.values, found.lengths)}

    @protocol(DP_METRIC)
    def pull(self, batch: Batch) -> int:
        """Read everything."""
        return sum(len(batch.packed(name).values) for name in COLUMNS)

    @protocol(THREE_D_PROTO)
    def make(self, batch: Batch) -> Mapping[str, Packed]:
        """The six columns of these rows."""
        return packed(len(batch))


def packed(rows: int) -> dict[str, Packed]:
    """The six columns without padding."""
    return {
        name: Packed(values.reshape(-1), np.full(rows, values.shape[1]))
        for name, values in arrays(rows).items()
    }


class Side:
    """The orders of the benchmark."""

    def __init__(self, groups: Mapping[str, Any], transfer: Any, rows: int) -> None:
        self.groups, self.transfer, self.columns = groups, transfer, packed(rows)
        self.rows, self.counted = rows, Deserialised()
        self.check()

    def call(self, method: str, *args: Any, role: str = "policy") -> Any:
        return self.groups[role].call(method, *args).result(timeout=120)

    def put(self) -> Batch:
        return Batch.from_columns(self.columns, schema=SCHEMA, transfer=self.transfer)

    def there_and_back(self, read: bool) -> Any:
        """Put, call, and with ``read`` have all columns in this process again."""
        batch = self.put()
        batch = batch.add_handles(self.call("back", batch))
        found = {name: batch.packed(BACK[name]) for name in COLUMNS} if read else None
        self.transfer.free(batch.handles())
        return found

    def check(self) -> None:
        """What comes back is what went."""
        for name, found in self.there_and_back(read=True).items():
            assert np.array_equal(found.values, self.columns[name].values), name

    def calls(self, count: int) -> float:
        (seconds,) = timed(1, lambda: [self.call("nothing") for _ in range(count)])
        return count / seconds

    def calls_in_flight(self, count: int) -> float:
        group = self.groups["policy"]

        def run() -> None:
            for future in [group.call("nothing") for _ in range(count)]:
                future.result(timeout=120)

        return count / timed(1, run)[0]

    def round_trip(self, times: int, read: bool = True) -> list[float]:
        return timed(times, lambda: self.there_and_back(read))

    def one_column(self, times: int) -> list[float]:
        def run() -> Any:
            batch = self.put()
            batch = batch.add_handles(self.call("one", batch))
            found = batch.packed(ONE)
            self.transfer.free(batch.handles())
            return found

        return timed(times, run)

    def pull(self, times: int) -> list[float]:
        batch = self.made(self.rows)
        found = timed(times, lambda: self.call("pull", batch, role="critic"))
        self.transfer.free(batch.handles())
        return found

    def made(self, rows: int) -> Batch:
        """A batch whose columns workers have made."""
        ids = {"group_ids": np.arange(rows)}
        batch = Batch.from_columns(ids, schema=SCHEMA, transfer=self.transfer)
        return batch.add_handles(self.call("make", batch))

    def scale(self, rows: int) -> dict[str, int]:
        """Columns made by workers, echoed by workers: what of it passes this process."""
        before = self.counted.bytes
        with Peak() as peak:
            batch = self.made(rows)
            made = self.counted.bytes
            batch = batch.add_handles(self.call("back", batch))
        assert len(batch.columns) == 1 + 2 * len(COLUMNS)
        self.transfer.free(batch.handles())
        return {
            "made": made - before,
            "there_and_back": self.counted.bytes - made,
            "peak": peak.bytes,
        }

    def floor(self, times: int) -> list[float]:
        """The store alone: every buffer put and got, and what was got once more."""
        import ray

        def run() -> Any:
            found = [ray.get(ray.put(one.values)) for one in self.columns.values()]
            return [ray.get(ray.put(values)) for values in found]

        return timed(times, run)

    def profile(self, count: int, times: int) -> dict[str, Any]:
        return profile(self, count, times)

    def orders(self) -> dict[str, Any]:
        names = ("calls", "calls_in_flight", "round_trip", "one_column", "pull", "scale", "floor")
        return {name: getattr(self, name) for name in (*names, "profile")}


@contextmanager
def cluster() -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Groups by role, and the transfer engine."""
    values = {
        "algo": "grpo",
        "reward": "exact",
        "model.engine": f"{__file__}:Echo",
        "transfer": "ray",
        "cluster": {"name": "ray", "logical_cpus": CPUS},
    }
    config = load_config(PluginHost().load(), Asked(values=values)).config
    algorithm = config.algo.load()(config.algo.config)
    spec = engine_specs(config, algorithm, 1.0, 8)["policy"]
    specs = {role: type(spec)(**{**vars(spec), "role": RoleSpec(role)}) for role in WORKERS}
    pools = {role: ResourcePool(role, 1, count) for role, count in WORKERS.items()}
    meshes = {role: Mesh(dp=count) for role, count in WORKERS.items()}
    placement = Placement(pools, {role: role for role in WORKERS}, meshes)
    started = config.cluster.load()(config.cluster.config)
    transfer = config.transfer.load()(config.transfer.config)
    try:
        yield started.start(placement, specs, None, config, transfer), transfer
    finally:
        started.close()
        transfer.close()


def main() -> None:
    held: dict[str, Any] = {}

    def run(rows: int) -> list[str]:
        held.update(Side(*made, rows).orders())
        return sorted(held)

    with cluster() as made:
        held["open"] = run
        serve(held)


if __name__ == "__main__":
    main()
