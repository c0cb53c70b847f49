"""The config of a whole run, and the sections of it that hold components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rlframe.config.checks import check_range
from rlframe.config.sections import DataConfig, ModelConfig, OptimConfig, PoolConfig, RunConfig
from rlframe.config.selected import Selected

__all__ = ["Config", "RewardConfig", "RewardPart", "RoleConfig"]


@dataclass(frozen=True)
class RewardPart:
    """One summand of the outcome reward, logged under ``label``.

    ``when`` maps columns (dots reach inside) to the value, or a list of values, that a row must
    have there to be scored by this part; empty scores every row.
    """

    label: str
    reward: Selected
    weight: float = 1.0
    when: Mapping[str, Any] = field(default_factory=dict)
    into: str = ""
    """Column that the part is written to, instead of being added to the reward ("costs")."""


@dataclass(frozen=True)
class RewardConfig:
    """How responses are scored: the weighted sum of the parts."""

    parts: tuple[RewardPart, ...] = ()
    """The rewards: name, weight, label (default: the name), when and own options of each."""
    on_error: Literal["fail", "skip"] = "fail"
    """fail ends the run when a reward or environment raises; skip leaves the response out, and
    counts it."""
    retries: int = 0
    """Times that what raised or took too long is tried again before on_error, at least 0."""
    retry_wait_s: float = 1.0
    """Pause before the first of these, seconds, at least 0; it doubles up to 30."""
    timeout_s: float = 60.0
    """Longest time for scoring one group, seconds, above 0."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "timeout_s", above=0)
        check_range(self, "retries", 0)
        check_range(self, "retry_wait_s", 0)
        labels = [part.label for part in self.parts]
        for label in labels:
            if labels.count(label) > 1:
                raise ValueError(f"parts holds '{label}' twice: give each a label of its own")


@dataclass(frozen=True)
class RoleConfig:
    """How one model role is built; what it does not say is that of the top level."""

    model: ModelConfig
    """Like the top level's model."""
    optim: OptimConfig
    """Like the top level's optim."""
    strategy: Selected
    """Like the top level's strategy."""
    engine: Selected
    """The model engine that ``model.engine`` names."""
    pool: str = "train"
    """Pool of devices on which the role lives."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run. Nothing changes it after it was loaded."""

    seed: int = 0
    """Seed of everything random in the run, at least 0."""
    steps: int = 100
    """Steps of the run, at least 1."""
    run: RunConfig
    """Where the run writes and how often."""
    model: ModelConfig
    """The model that is trained."""
    data: DataConfig
    """Prompts."""
    algo: Selected
    """What is learned."""
    optim: OptimConfig
    """The optimiser."""
    strategy: Selected
    """How a model is spread over its ranks."""
    rollout: Selected
    """Engine that samples; its options derive from SamplingConfig."""
    reward: RewardConfig
    """How responses are scored."""
    env: Selected
    """What a response is answered by."""
    default_role: RoleConfig
    """What a role gets that ``roles`` does not name; made from the sections above."""
    roles: Mapping[str, RoleConfig]
    """Models of the method by role, where they differ from the sections above."""
    cluster: Selected
    """Where processes run."""
    pools: Mapping[str, PoolConfig]
    """Devices by pool."""
    scheduler: Selected
    """When the stages of a step run."""
    tail: Selected
    """What becomes of responses that take much longer than others."""
    transfer: Selected
    """Where batch columns lie."""
    checkpoint: Selected
    """How new weights reach the rollout engine."""
    resharder: Selected
    """Which parts of the weights go where."""
    mapper: Selected
    """Which role lives in which pool."""
    logger: tuple[Selected, ...] = ()
    """Where figures go."""
    callback: tuple[Selected, ...] = ()
    """What else hangs on the loop."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "seed", 0)
        check_range(self, "steps", 1)

    def role(self, name: str) -> RoleConfig:
        """The options of a role, whether or not ``roles`` names it."""
        return self.roles.get(name, self.default_role)

    def to_dict(self) -> dict[str, Any]:
        """The config as plain values: what a YAML file would say, and what snapshots keep."""
        from rlframe.config.plain import config_to_dict

        return config_to_dict(self)
