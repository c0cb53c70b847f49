"""When a figure deserves a warning: one table of limits, each with its reason and what to try."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlframe.report import RunRecord, Series

__all__ = ["CHECKS", "Check", "Finding", "find"]

_LEAST = 4
"""Steps from which a beginning and an end can be told apart."""


@dataclass(frozen=True)
class Check:
    """Warn where ``measure`` of ``metric`` is above (or below) ``limit``."""

    name: str
    metric: str
    measure: Callable[[Series], float | None]
    limit: float
    reason: str
    """Why this limit."""
    advice: tuple[str, ...]
    """What to try, the most likely first."""
    below: bool = False
    shown: str = "{:.3g}"
    """How the measure is written."""


@dataclass(frozen=True)
class Finding:
    """A check that a run did not pass."""

    check: Check
    value: float

    @property
    def words(self) -> str:
        """The measure and the limit."""
        side = "below" if self.check.below else "above"
        value, limit = (self.check.shown.format(v) for v in (self.value, self.check.limit))
        return f"{value}, {side} {limit}"


def _end(values: Sequence[float]) -> list[float]:
    """The last quarter, at least one."""
    return list(values[-max(len(values) // 4, 1) :])


def at_end(series: Series) -> float | None:
    """Mean of the last quarter."""
    return statistics.fmean(_end(series.values)) if len(series) else None


def size_at_end(series: Series) -> float | None:
    """Mean of absolute values in the last quarter."""
    return statistics.fmean(map(abs, _end(series.values))) if len(series) else None


def growth(series: Series) -> float | None:
    """Mean of the last quarter by that of the first."""
    if len(series) < _LEAST:
        return None
    first = statistics.fmean(series.values[: max(len(series) // 4, 1)])
    return statistics.fmean(_end(series.values)) / first if first > 0 else None


def change(series: Series) -> float | None:
    """Last value less the first."""
    return series.values[-1] - series.values[0] if len(series) > 1 else None


def peak(series: Series) -> float | None:
    """The largest value by the median."""
    middle = statistics.median(series.values) if len(series) >= _LEAST else 0.0
    return max(series.values) / middle if middle > 0 else None


def last(series: Series) -> float | None:
    """The last value, of what is counted from the start of a run."""
    return series.values[-1] if len(series) else None


def total(series: Series) -> float | None:
    """The sum."""
    return sum(series.values) if len(series) else None


CHECKS: tuple[Check, ...] = (
    Check(
        "Groups without signal", "critic/rewards/zero_variance_groups", at_end, 0.5,
        "a group whose rewards are all equal has no gradient: above one half most of the sampling "
        "is for nothing",
        (
            "--algo dapo, or algo.drop_equal_groups=true where the method has it: draws others",
            "data of another difficulty: all right is too easy, all wrong too hard",
            "more algo.samples_per_prompt, or a reward with steps between 0 and 1",
        ),
        shown="{:.0%}",
    ),
    Check(
        "Many tokens are clipped", "actor/pg_clipfrac", at_end, 0.2,
        "PPO and GRPO runs that learn clip a few per cent; above a fifth an update goes further "
        "than its data can tell",
        ("a lower optim.lr", "fewer algo.epochs, or larger algo.minibatch_prompts"),
        shown="{:.1%}",
    ),
    Check(
        "Updates are large", "actor/ppo_kl", size_at_end, 0.1,
        "nats a token between the policy before and after its updates: a ratio at a clip of "
        "0.2 is worth about 0.02; at 0.1 most tokens are far beyond it",
        ("a lower optim.lr", "fewer algo.epochs", "a smaller optim.max_grad_norm"),
    ),
    Check(
        "Far from the reference", "actor/kl_loss", at_end, 1.0,
        "nats a token: text of such a policy is unlikely under the reference, so it may be "
        "gibberish that the reward likes",
        ("read the samples below", "a higher algo.kl_coef", "a reward that is harder to please"),
    ),
    Check(
        "Trainer and sampler disagree", "actor/rollout_logprob_gap", at_end, 0.05,
        "nats a token between log-probabilities of the same tokens: rounding gives 1e-6 in float32 "
        "and about 0.01 in bfloat16; more is another distribution, and the gradient is biased",
        (
            "the same precision on both sides (model.dtype)",
            "rollout.top_p=1, no top_k and min_p: the trainer knows the whole distribution only",
            "algo.rollout_correction=truncate or mask",
            "rlframe doctor; a checkpoint engine that verifies (checkpoint.verify=1)",
        ),
    ),
    Check(
        "Few samples count", "actor/rollout_ess", at_end, 0.7,
        "effective share of samples by their weights p/q: 1 is on-policy, below 0.7 a few tokens "
        "decide the update",
        ("a smaller staleness bound of --scheduler async", "algo.rollout_correction=truncate"),
        below=True, shown="{:.2f}",
    ),
    Check(
        "Entropy collapses", "actor/entropy", growth, 0.2,
        "at a fifth of its beginning the samples of a group are nearly equal, and exploring ends",
        (
            "a higher upper clip (--algo dapo), --algo clip-cov or kl-cov",
            "a higher rollout.temperature, algo.entropy_coef above 0",
            "stop here if validation has stopped rising",
        ),
        below=True, shown="{:.2f} of the beginning",
    ),
    Check(
        "Entropy explodes", "actor/entropy", growth, 3.0,
        "three times that of the beginning: the policy drifts to noise",
        ("a lower optim.lr", "algo.entropy_coef=0", "algo.kl_coef above 0"),
        shown="{:.1f} times the beginning",
    ),
    Check(
        "Responses grow", "response_length/mean", growth, 2.0,
        "twice the beginning: fine where thinking is learned, waste where the reward does not rise "
        "with it; a step costs twice as much",
        (
            "compare with the reward: do longer samples earn more?",
            "--reward length beside yours, or the overlong penalty of --algo dapo",
            "--algo dr-grpo: GRPO's division by length favours long wrong answers",
        ),
        shown="{:.1f} times the beginning",
    ),
    Check(
        "Responses shrink", "response_length/mean", growth, 0.4,
        "under half of the beginning: the policy may have learned to stop early",
        ("read the samples below", "a format reward", "rollout.min_new_tokens"),
        below=True, shown="{:.2f} times the beginning",
    ),
    Check(
        "Responses are cut off", "response_length/clip_ratio", at_end, 0.1,
        "share that ended at rollout.max_new_tokens without an end: their reward tells little",
        (
            "a larger rollout.max_new_tokens",
            "algo.mask_truncated=true where the method has it (dapo)",
            "check the stop tokens: a chat model may end by another one",
        ),
        shown="{:.0%}",
    ),
    Check(
        "Validation falls", "val/reward/mean", change, -0.02,
        "lower than before training by more than a small sample's noise",
        (
            "rlframe eval with more prompts, for an interval",
            "a lower optim.lr, algo.kl_coef above 0",
            "where the training reward rises meanwhile, the reward is being gamed: read samples",
        ),
        below=True, shown="{:+.3f}",
    ),
    Check(
        "Gradients jump", "actor/grad_norm", peak, 10.0,
        "the largest norm against the median: above ten single batches decide; clipping bounds the "
        "step, not its direction",
        ("warm-up (optim.warmup_steps)", "a lower optim.lr", "larger batches"),
        shown="{:.0f} times the median",
    ),
    Check(
        "Optimiser steps were skipped", "actor/skipped_steps", total, 0.0,
        "a step is skipped where its loss or gradient is not finite",
        ("see the events in the overview", "model.dtype=float32", "a lower optim.lr"),
        shown="{:.0f}",
    ),
    Check(
        "The critic explains little", "critic/vf_explained_var", at_end, 0.0,
        "explained variance of returns: below 0 a constant would do better",
        ("critic warm-up", "a higher learning rate of the critic (roles.critic.optim.lr)"),
        below=True, shown="{:.2f}",
    ),
    Check(
        "Stale samples", "training/staleness/mean", at_end, 4.0,
        "versions of the weights between sampling and learning: with each one more tokens leave "
        "the clip range, where they teach nothing",
        ("a smaller scheduler.staleness", "--algo decoupled-ppo", "more devices for the rollout"),
        shown="{:.1f}",
    ),
    Check(
        "Groups fail", "collect/failed_groups", total, 0.0,
        "a group whose reward or environment raised is not trained on",
        ("the run's log names the error", "reward.on_error, reward.timeout_s"),
        shown="{:.0f}",
    ),
    Check(
        "Episodes are aborted", "response/aborted_ratio", at_end, 0.05,
        "share of responses that ended early by an abort: more than a few are lost work",
        ("a longer deadline of --tail", "rollout.step_timeout_s"),
        shown="{:.0%}",
    ),
    Check(
        "Prompts are dropped", "data/dropped_prompts", last, 0.0,
        "prompts over data.max_prompt_tokens are data that is paid for and not used",
        ("a larger data.max_prompt_tokens", "data.over_long says what is done with them"),
        shown="{:.0f}",
    ),
    Check(
        "Ranks wait for each other", "perf/flops_imbalance", at_end, 0.3,
        "work of the busiest rank over the mean: 0.3 is nearly a third of the update spent waiting",
        ("a smaller optim.tokens_per_microbatch", "more prompts a step (data.prompts_per_step)"),
        shown="{:.0%}",
    ),
)  # fmt: skip
"""Every check, the gravest kinds first."""


def find(run: RunRecord) -> list[Finding]:
    """What a run's figures deserve to be told."""
    found = []
    for check in CHECKS:
        value = check.measure(run.series(check.metric))
        if value is None:
            continue
        if value < check.limit if check.below else value > check.limit:
            found.append(Finding(check, value))
    return found
