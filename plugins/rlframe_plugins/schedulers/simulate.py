"""``rlframe simulate``: schedulers on simulated engines, side by side."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from rlframe.interfaces.loop import Scheduler, Tail
    from rlframe.simulation import SimReport, SimSpec

__all__ = ["add_simulate_command", "length_of", "simulate"]

_LENGTHS = ("lognormal", "geometric", "constant", "uniform")


@dataclass(frozen=True)
class _Way:
    """A scheduler and a tail policy with its options, by the name that the table shows.

    ``published`` is what papers report of the like, beside ``sync``.
    """

    name: str
    scheduler: str
    options: dict[str, Any]
    tail: str = "wait"
    published: str = ""


_WAYS = (
    _Way("sync", "sync", {}),
    _Way("sync early-stop", "sync", {}, tail="early-stop"),
    _Way("sync partial", "sync", {}, tail="partial", published="1.2-1.4 (APRIL, 2509.18521)"),
    _Way("sync defer", "sync", {}, tail="defer", published="2.0-2.6 (RollPacker, 2509.21009)"),
    _Way("one-step-off", "one-step-off", {}, published="1.2-1.4 (verl's recipe)"),
    *(
        _Way(
            f"async {bound} {way}",
            "async",
            {"staleness": bound, "on_update": way},
            published="up to 2.8 (AReaL, 2505.24298)" if bound == 4 and way == "in-flight" else "",
        )
        for bound in (1, 2, 4)
        for way in ("in-flight", "drain")
    ),
)


def add_simulate_command(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "simulate", help="schedulers on simulated engines: seconds a step, idle time, staleness"
    )
    numbers: tuple[tuple[str, type, Any, str], ...] = (
        ("--steps", int, 50, "steps of a run"),
        ("--prompts", int, 64, "prompts a step"),
        ("--samples", int, 8, "responses a prompt"),
        ("--replicas", int, 4, "rollout replicas"),
        ("--slots", int, 256, "sequences that a replica decodes at once"),
        ("--mean-tokens", float, 500.0, "mean length of a response"),
        ("--most-tokens", int, 8192, "longest response"),
        ("--sigma", float, 1.0, "spread of lognormal lengths"),
        ("--token-ms", float, 20.0, "milliseconds of a token, whatever runs beside it"),
        ("--sequence-ms", float, 0.02, "milliseconds that each running sequence adds to it"),
        ("--train-s", float, 20.0, "seconds of an update"),
        ("--train-share", float, 0.0, "share of a sync step that training takes; 0: --train-s"),
        ("--sync-s", float, 1.0, "seconds of a publish"),
        ("--accept", float, 1.0, "share of groups that the method accepts"),
        ("--fail-every-s", float, 0.0, "mean seconds between failures of a replica; 0: none"),
        ("--repair-s", float, 30.0, "seconds until a failed replica is back"),
        ("--seed", int, 0, "seed of lengths and failures"),
    )
    for flag, kind, default, text in numbers:
        parser.add_argument(flag, type=kind, default=default, help=f"{text} (default {default})")
    parser.add_argument("--lengths", choices=_LENGTHS, default="lognormal")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(run=_run)


def length_of(
    kind: str, mean: float, most: int, sigma: float = 1.0
) -> Callable[[random.Random], int]:
    """Draws response lengths, 1 to ``most`` tokens, with the given mean before that cut."""

    def draw(source: random.Random) -> int:
        if kind == "constant":
            tokens = mean
        elif kind == "uniform":
            tokens = source.uniform(0, 2 * mean)
        elif kind == "geometric":
            tokens = source.expovariate(1 / mean)
        else:
            tokens = source.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)
        return min(max(round(tokens), 1), most)

    return draw


def simulate(spec: SimSpec, make: Callable[[], Scheduler], tail: Tail | None = None) -> SimReport:
    """One run of a scheduler, with a tail policy."""
    from rlframe.simulation import SimRun

    return SimRun(spec, tail).simulate(make())


def _run(arguments: argparse.Namespace) -> int:
    from rlframe.host.host import current_host
    from rlframe.simulation import SimSpec

    host = current_host()
    _check(arguments)
    lengths = length_of(
        arguments.lengths, arguments.mean_tokens, arguments.most_tokens, arguments.sigma
    )
    spec = SimSpec(
        steps=arguments.steps,
        prompts_per_step=arguments.prompts,
        samples=arguments.samples,
        length=lengths,
        replicas=arguments.replicas,
        slots=arguments.slots,
        token_s=arguments.token_ms / 1e3,
        sequence_s=arguments.sequence_ms / 1e3,
        train_s=arguments.train_s,
        sync_s=arguments.sync_s,
        accept=arguments.accept,
        fail_every_s=arguments.fail_every_s,
        repair_s=arguments.repair_s,
        seed=arguments.seed,
    )
    spec = _with_share(spec, arguments.train_share, _made("scheduler", "sync", {}, host))
    arguments.train_s = spec.train_s
    rows = []
    for way in _WAYS:
        scheduler = _made("scheduler", way.scheduler, way.options, host)
        tail = _made("tail", way.tail, {}, host)
        rows.append(_figures(way, simulate(spec, lambda made=scheduler: made, tail)))  # type: ignore[misc]
    for row in rows:
        row["times_sync"] = rows[0]["seconds"] / row["seconds"] if row["seconds"] else 1.0
    assumed = {k: v for k, v in vars(arguments).items() if k not in ("run", "command", "json")}
    stages = _stages(rows[0]["seconds"] / spec.steps, spec)
    if arguments.json:
        print(json.dumps({"assumptions": _plain(assumed), "sync_step": stages, "runs": rows}))
        return 0
    _print(rows, assumed, stages)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for what is out of range."""
    for name in ("steps", "prompts", "samples", "replicas", "slots", "most_tokens"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    if not 0 < arguments.accept <= 1 or arguments.mean_tokens <= 0:
        raise ConfigError("--accept must be above 0 to 1, --mean-tokens above 0")
    if not 0 <= arguments.train_share < 1:
        raise ConfigError("--train-share must be at least 0 and below 1")
    times = ("token_ms", "sequence_ms", "train_s", "sync_s", "fail_every_s", "repair_s")
    for name in (*times, "sigma"):
        if getattr(arguments, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0")


def _with_share(spec: SimSpec, share: float, sync: Scheduler) -> SimSpec:
    """Updates that are this share of a step of ``sync``; 0 leaves them as they are."""
    if not share:
        return spec
    bare = simulate(replace(spec, train_s=0.0), lambda: sync)
    return replace(spec, train_s=bare.seconds / spec.steps * share / (1 - share))


def _stages(step_s: float, spec: SimSpec) -> dict[str, float]:
    """Mean seconds of a step of ``sync``, and what overlapping them alone can bring at most.

    A published gain can be met only where this bound allows it: where training takes about as
    large a part of a step as it did there.
    """
    plays = max(step_s - spec.train_s - spec.sync_s, 0.0)
    slower = max(plays, spec.train_s) + spec.sync_s
    return {
        "generation_s": plays,
        "training_s": spec.train_s,
        "publish_s": spec.sync_s,
        "overlap_at_most": step_s / slower if slower else 1.0,
    }


def _made(kind: str, name: str, options: dict[str, Any], host: Any) -> Any:
    from rlframe.host.resolve import resolve

    cls = resolve(host, kind, name).value
    config = getattr(cls, "Config", None)
    return cls(config(**options) if config else None)


def _figures(way: _Way, report: SimReport) -> dict[str, Any]:
    ages = Counter(report.ages)
    return {
        "scheduler": way.name,
        "published": way.published,
        "seconds": report.seconds,
        "step_s": statistics.median(report.step_s),
        "tokens_per_s": report.tokens_per_s,
        "train_busy": report.train_busy,
        "rollout_busy": report.rollout_busy,
        "wasted_tokens": report.wasted_tokens,
        "staleness": {str(age): ages[age] / len(report.ages) for age in sorted(ages)},
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, int | float | str | bool)}


def _print(rows: list[dict[str, Any]], assumed: dict[str, Any], stages: dict[str, float]) -> None:
    print("assumed: " + ", ".join(f"{k} {v}" for k, v in _plain(assumed).items()))
    print(
        "a step of sync: generation {generation_s:.1f} s, training {training_s:.1f} s, publish "
        "{publish_s:.1f} s; overlapping them alone brings at most {overlap_at_most:.2f}".format(
            **stages
        )
    )
    head = ("scheduler", "s/step", "x sync", "tok/s", "trainer", "rollout", "staleness")
    print("{:<18}{:>9}{:>8}{:>10}{:>9}{:>9}  {}".format(*head))
    for row in rows:
        ages = " ".join(f"{age}:{share:.0%}" for age, share in row["staleness"].items())
        name, trains, plays = row["scheduler"], row["train_busy"], row["rollout_busy"]
        speed = f"{row['step_s']:>9.2f}{row['times_sync']:>8.2f}{row['tokens_per_s']:>10.0f}"
        told = f"   published: {row['published']}" if row["published"] else ""
        print(f"{name:<18}{speed}{trains:>9.0%}{plays:>9.0%}  {ages}{told}")
