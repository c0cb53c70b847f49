"""``rlframe eval``: sample K responses a prompt, score them, estimate accuracy, pass@k and maj@k.

The parts are those of a run: Cluster, RolloutEngine, Collector, Scorer; nothing is trained.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rlframe.algorithm import Algorithm, RoleSpec
from rlframe.build import run_sampling
from rlframe.collecting.collector import Collector
from rlframe.config import Config
from rlframe.config.checks import check_range
from rlframe.data import open_dataset, read_rows
from rlframe.errors import ConfigError, RewardError
from rlframe.evaluating.answers import answer_of, answer_pattern
from rlframe.evaluating.estimators import Estimate, estimate, majority_at_k, pass_at_k
from rlframe.evaluating.policy_rollout import policy_rollout
from rlframe.host.host import PluginHost
from rlframe.inputs import check_rows
from rlframe.models.paths import find_model, load_tokenizer, resolve_model
from rlframe.place import find_place
from rlframe.recording.metrics import validation_metrics
from rlframe.requests import Group, Row, Sampling
from rlframe.rewards import Scorer

__all__ = ["EvalOptions", "PolicyOnly", "Report", "evaluate", "summarise"]

_AT_ONCE = 2048
"""Episodes that are played together."""


@dataclass(frozen=True)
class EvalOptions:
    """What to sample and what counts as right."""

    samples: int = 1
    """Responses a prompt, at least 1."""
    temperature: float | None = None
    """Softmax temperature; None is greedy for one sample, else the rollout's own."""
    limit: int = 0
    """Prompts at most, at least 0; 0 takes all."""
    threshold: float = 1.0
    """Reward from which a response counts as right."""
    answer: str | None = None
    """Regular expression of the answer that a response votes for; None finds a usual form."""
    save: Path | None = None
    """JSON lines file for every response."""

    def __post_init__(self) -> None:
        """Check ranges; raises ConfigError."""
        try:
            check_range(self, "samples", 1)
            check_range(self, "limit", 0)
            if self.temperature is not None:
                check_range(self, "temperature", 0, 100)
        except ValueError as error:
            raise ConfigError(f"--{error}") from error
        answer_pattern(self.answer)


@dataclass(frozen=True)
class Report:
    """What came out: estimates by name, and plain figures."""

    model: str
    data: str
    samples: int
    temperature: float
    estimates: Mapping[str, Estimate]
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        shown = {name: one.to_dict() for name, one in self.estimates.items()}
        return {**dataclasses.asdict(self), "estimates": shown, "figures": dict(self.figures)}

    def lines(self) -> Iterator[str]:
        """A table for people."""
        yield f"model {self.model}"
        yield f"data  {self.data}"
        yield f"{self.samples} samples a prompt, temperature {self.temperature:g}"
        yield ""
        yield f"{'':<12}{'value':>8}   95 % interval      prompts"
        for name, one in self.estimates.items():
            interval = f"[{one.low:.4f}, {one.high:.4f}]"
            yield f"{name:<12}{one.value:>8.4f}   {interval:<17}{one.prompts:>9}  {one.method}"
        yield ""
        for name, value in self.figures.items():
            yield f"{name:<28}{value:>10.4g}"


class PolicyOnly(Algorithm):
    """Only a policy, which is not trained."""

    def roles(self) -> tuple[RoleSpec, ...]:
        """See :class:`Algorithm`."""
        return (RoleSpec("policy"),)


def evaluate(
    config: Config,
    host: PluginHost,
    options: EvalOptions,
    *,
    policy: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Report:
    """Evaluate ``model.path``, or the weights in the folder ``policy``, on ``data.train``.

    Raises ConfigError, DataError, ModelError, RewardError, SnapshotError.
    """
    find_model("model.path", config.model.path)
    algorithm = PolicyOnly()
    with ExitStack() as ends:
        place = find_place(config, algorithm)
        ends.callback(place.cluster.close)
        config = place.config
        path = resolve_model(config.model.path)
        tokenizer = load_tokenizer(path)
        sampling = _sampling(run_sampling(config, path, tokenizer), options)
        dataset = open_dataset(config.data.train, host, config.data)
        scorer = Scorer.from_config(config.reward)
        check_rows("train", dataset, config, algorithm, scorer)
        drawn = read_rows(dataset, tokenizer, config.data, sampling=sampling)
        rows = list(islice(drawn, options.limit or None))
        environment = config.env.load()(config.env.config, tokenizer)
        client = policy_rollout(config, algorithm, path, sampling, place, policy, ends)
        collector = Collector(algorithm, environment, scorer, client, config.seed)
        ends.callback(collector.close)
        started = time.perf_counter()
        played = _play(collector, rows, options.samples, say)
        seconds = time.perf_counter() - started
    if options.save is not None:
        _write(options.save, played)
    estimates, figures = summarise(played, options, config.seed)
    tokens = sum(e.length for group in played for e in group.episodes)
    figures |= {"seconds": seconds, "tokens_per_s": tokens / seconds if seconds else 0.0}
    where = str(policy) if policy is not None else path
    return Report(
        where, config.data.train, options.samples, sampling.temperature, estimates, figures
    )


def summarise(
    groups: Sequence[Group], options: EvalOptions, seed: int = 0
) -> tuple[dict[str, Estimate], dict[str, float]]:
    """Estimates and figures of scored groups. Raises RewardError where nothing was scored.

    A response without a reward (an abstention, or a skipped fault) is left out and counted; a
    figure "at k" is over the prompts that have k scored responses.
    """
    pattern = answer_pattern(options.answer)
    votes: list[tuple[list[str], list[bool]]] = []
    for group in groups:
        scored = [(e.text, e.reward) for e in group.episodes if e.reward is not None]
        if scored:
            answers = [answer_of(text, pattern) for text, _ in scored]
            # A sum of weighted parts may miss the threshold by rounding alone.
            votes.append((answers, [reward >= options.threshold - 1e-6 for _, reward in scored]))
    if not votes:
        raise RewardError("no response was scored: see reward.on_error and the reward's columns")
    shares = [sum(right) / len(right) for _, right in votes]
    found = {"accuracy": estimate(shares, seed)}
    for k in _ks(options.samples):
        enough = [(a, r) for a, r in votes if len(r) >= k]
        if k > 1 and enough:
            passed = [pass_at_k(len(r), sum(r), k) for _, r in enough]
            found[f"pass@{k}"] = estimate(passed, seed)
            found[f"maj@{k}"] = estimate([majority_at_k(a, r, k) for a, r in enough], seed)
    return found, _figures(groups, options)


def _figures(groups: Sequence[Group], options: EvalOptions) -> dict[str, float]:
    episodes = [e for group in groups for e in group.episodes]
    scored = sum(e.reward is not None for e in episodes)
    cut = sum(e.finish_reason == "length" for e in episodes)
    figures = {
        name.removeprefix("val/"): value for name, value in validation_metrics(groups).items()
    }
    figures["unscored"] = float(len(groups) * options.samples - scored)
    figures["cut_at_max_new_tokens"] = cut / len(episodes) if episodes else 0.0
    return figures


def _ks(samples: int) -> list[int]:
    """1, 2, 4, ... up to the number of samples, which is the last."""
    ks = [1]
    while ks[-1] * 2 < samples:
        ks.append(ks[-1] * 2)
    return [*ks, samples] if samples > 1 else ks


def _sampling(base: Sampling, options: EvalOptions) -> Sampling:
    temperature = options.temperature
    if temperature is None:
        temperature = base.temperature if options.samples > 1 else 0.0
    if temperature == 0:
        return dataclasses.replace(base, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
    return dataclasses.replace(base, temperature=temperature)


def _play(
    collector: Collector, rows: Sequence[Row], samples: int, say: Callable[[str], object]
) -> list[Group]:
    size = max(_AT_ONCE // samples, 1)
    groups: list[Group] = []
    for start in range(0, len(rows), size):
        groups += collector.evaluate(rows[start : start + size], samples)
        if len(rows) > size:
            say(f"{len(groups)} of {len(rows)} prompts")
    return groups


def _write(path: Path, groups: Sequence[Group]) -> None:
    try:
        with path.open("w", encoding="utf-8") as file:
            for group in groups:
                for episode in group.episodes:
                    line = {
                        "prompt": group.row.columns["prompt"],
                        "response": episode.text,
                        "reward": episode.reward,
                        "reward_parts": episode.reward_parts,
                        "tokens": episode.length,
                        "finish_reason": episode.finish_reason,
                        "source": group.row.source,
                    }
                    file.write(json.dumps(line, default=str) + "\n")
    except OSError as error:
        raise ConfigError(f"--save {path} cannot be written: {error.strerror}") from error
