"""Where the time of a call, and of columns there and back, goes on our side."""

from __future__ import annotations

import cProfile
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import ray
from controller_shared import BACK, COLUMNS, timed

from rlframe.batching.batch import Batch

_MOST = 14


class Plain:
    """An actor that does nothing."""

    def nothing(self) -> None:
        """Without an argument."""

    def named(self, what: str) -> None:
        """With one."""


class Grouped(Plain):
    """One that has threads beside the one of its calls."""

    @ray.method(concurrency_group="side")
    def beside(self) -> None:
        """On these."""


def profile(side: Any, count: int, times: int) -> dict[str, Any]:
    """``side`` is the benchmark's; the cluster is its."""
    return {
        "calls": {
            "bare_actors_per_s": bare_actors(count),
            "functions_of_the_controller": functions(lambda: side.calls(count), count),
        },
        "there_and_back": {
            "parts_s": there_and_back(side, times),
            "store_s": store(side, times),
        },
    }


def bare_actors(count: int) -> dict[str, float]:
    """Calls a second of Ray alone to two actors, answered before the next."""
    plain = [ray.remote(Plain).options(num_cpus=0).remote() for _ in range(2)]
    pools = ray.remote(concurrency_groups={"side": 4})(Grouped)
    threaded = [pools.options(num_cpus=0).remote() for _ in range(2)]

    def rate(send: Callable[[Any], Any], actors: list[Any]) -> float:
        def run() -> None:
            for _ in range(count):
                ray.get([send(actor) for actor in actors])

        run()
        return count / statistics.median(timed(3, run))

    try:
        return {
            "no argument": rate(lambda a: a.nothing.remote(), plain),
            "one string": rate(lambda a: a.named.remote("policy.nothing"), plain),
            "no argument, threads beside": rate(lambda a: a.nothing.remote(), threaded),
            "one string, threads beside": rate(
                lambda a: a.named.remote("policy.nothing"), threaded
            ),
        }
    finally:
        for actor in plain + threaded:
            ray.kill(actor)


def functions(run: Callable[[], Any], count: int) -> list[dict[str, Any]]:
    """Where the controller's own thread is, by the function; microseconds a call."""
    watched = cProfile.Profile()
    watched.enable()
    run()
    watched.disable()
    rows = []
    for (file, _, name), (_, calls, own, _, _) in pstats.Stats(watched).stats.items():  # type: ignore[attr-defined]
        where = "/".join(file.split("/")[-2:])
        rows.append({"function": f"{where}:{name}", "us": 1e6 * own / count, "calls": calls})
    rows.sort(key=lambda row: -row["us"])
    return rows[:_MOST]


def there_and_back(side: Any, times: int) -> dict[str, float]:
    """Seconds until the columns are stored, until the workers' are, until they are read."""
    found: dict[str, list[float]] = {"put": [], "call": [], "read": [], "free": []}
    for _ in range(times):
        clock = [time.perf_counter()]
        batch: Batch = side.put()
        clock.append(time.perf_counter())
        batch = batch.add_handles(side.call("back", batch))
        clock.append(time.perf_counter())
        read = {name: batch.packed(BACK[name]) for name in COLUMNS}
        clock.append(time.perf_counter())
        side.transfer.free(batch.handles())
        clock.append(time.perf_counter())
        del read
        for name, start, end in zip(found, clock, clock[1:], strict=False):
            found[name].append(end - start)
    return {name: statistics.median(values) for name, values in found.items()}


def store(side: Any, times: int) -> dict[str, float]:
    """The same bytes in the store once, each column for itself and all as one object."""
    arrays = [packed.values for packed in side.columns.values()]
    refs = [ray.put(array) for array in arrays]
    together = ray.put(arrays)
    out = {
        "put": timed(times, lambda: [ray.put(array) for array in arrays]),
        "put together": timed(times, lambda: ray.put(arrays)),
        "get": timed(times, lambda: ray.get(refs)),
        "get together": timed(times, lambda: ray.get(together)),
        "memcpy": timed(times, lambda: [array.copy() for array in arrays]),
    }
    return {name: statistics.median(values) for name, values in out.items()}
