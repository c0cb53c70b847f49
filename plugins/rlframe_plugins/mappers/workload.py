"""What one step processes: prompts, samples, lengths as a distribution."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from rlframe.errors import ConfigError

__all__ = ["Lengths", "Workload", "parse_lengths"]

_BINS = 16
_FORM = re.compile(r"(\w+):(.+)")


@dataclass(frozen=True)
class Lengths:
    """Response lengths in tokens: equally likely values in rising order."""

    quantiles: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Tokens of a response on average."""
        return sum(self.quantiles) / len(self.quantiles)

    @property
    def longest(self) -> float:
        """Tokens of the longest response."""
        return self.quantiles[-1]

    @property
    def in_flight(self) -> float:
        """Tokens that a response has while it is generated, on average over rounds."""
        return sum(q * q for q in self.quantiles) / (2 * sum(self.quantiles))


@dataclass(frozen=True)
class Workload:
    """One step: ``prompts`` x ``samples`` responses that are learned from, ``extra`` that are not.

    ``minibatch_prompts`` is the share of an optimiser step (0: the whole batch), ``epochs`` the
    passes over the batch. Lengths are in tokens.
    """

    prompts: int = 1024
    samples: int = 1
    prompt_tokens: float = 1024
    responses: Lengths = Lengths((1024.0,))
    minibatch_prompts: int = 0
    epochs: int = 1
    extra: int = 0

    def __post_init__(self) -> None:
        if min(self.prompts, self.samples, self.epochs) < 1 or self.prompt_tokens < 0:
            raise ConfigError("prompts, samples and epochs must be at least 1")
        if self.minibatch_prompts and self.prompts % self.minibatch_prompts:
            raise ConfigError(
                f"{self.prompts} prompts a step are not a multiple of {self.minibatch_prompts} "
                "prompts a mini-batch"
            )

    @property
    def generated(self) -> int:
        """Responses that are sampled in a step."""
        return self.prompts * (self.samples + self.extra)

    @property
    def rows(self) -> int:
        """Responses that are learned from in a step."""
        return self.prompts * self.samples

    @property
    def sequence(self) -> float:
        """Prompt and response tokens of a row on average."""
        return self.prompt_tokens + self.responses.mean

    @property
    def attended(self) -> float:
        """Length that attention sees: the mean of squares over the mean of sequence lengths."""
        total = [self.prompt_tokens + q for q in self.responses.quantiles]
        return sum(s * s for s in total) / sum(total)

    @property
    def tokens(self) -> float:
        """Prompt and response tokens of a step that count as throughput."""
        return self.rows * self.sequence


def parse_lengths(text: str) -> Lengths:
    """Read a distribution of response lengths.

    ``1024``; ``uniform:128-2048``; ``geometric:mean=60,max=279``; ``lognormal:mean=600,sigma=1,
    max=4096``; or a file with one length a line. Raises ``ConfigError``.
    """
    if text.isdigit() and int(text) > 0:
        return Lengths((float(text),))
    match = _FORM.fullmatch(text)
    try:
        if match and match[1] == "uniform":
            low, high = (float(v) for v in match[2].split("-"))
            return _quantiles([low + (high - low) * x for x in _levels()], high)
        if match and match[1] in ("geometric", "lognormal"):
            values = dict(part.split("=") for part in match[2].split(","))
            numbers = {key: float(value) for key, value in values.items()}
            return (_geometric if match[1] == "geometric" else _lognormal)(**numbers)
        lines = Path(text).read_text(encoding="utf-8").split()
        return _from_sample(sorted(float(line) for line in lines))
    except (OSError, TypeError, ValueError):
        raise ConfigError(
            f"response tokens '{text}' must be a number, uniform:LOW-HIGH, "
            "geometric:mean=M,max=X, lognormal:mean=M,sigma=S,max=X, or a file of lengths"
        ) from None


def _levels() -> list[float]:
    return [(i + 0.5) / _BINS for i in range(_BINS)]


def _quantiles(values: list[float], longest: float) -> Lengths:
    if longest <= 0 or not all(v >= 0 for v in values):
        raise ValueError("lengths must be positive")
    return Lengths(tuple(min(max(v, 1.0), longest) for v in sorted(values)))


def _geometric(mean: float, max: float) -> Lengths:  # noqa: A002
    return _quantiles([-mean * math.log(1 - x) for x in _levels()], max)


def _lognormal(mean: float, sigma: float, max: float) -> Lengths:  # noqa: A002
    normal = NormalDist(math.log(mean) - sigma * sigma / 2, sigma)
    return _quantiles([math.exp(normal.inv_cdf(x)) for x in _levels()], max)


def _from_sample(sample: list[float]) -> Lengths:
    if not sample:
        raise ValueError("no lengths")
    return _quantiles([sample[int(x * len(sample))] for x in _levels()], sample[-1])
