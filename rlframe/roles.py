"""The models of a method's dataflow, and which of them a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rlframe.errors import ConfigError

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm
    from rlframe.config import Config

__all__ = [
    "REWARD_MODEL",
    "Divergence",
    "ModelKind",
    "RoleSpec",
    "check_beside",
    "known_roles",
    "reads_text",
    "roles_of",
]

ModelKind = Literal["policy", "value", "score", "teacher"]
"""A model's head: logits, a number a token, a number a row, the logits of one that is not ours."""


@dataclass(frozen=True)
class Divergence:
    """How far a role's next-token distribution p is from that of another role, q, of its pool.

    ``out.divergence`` is then nats a token, differentiable: KL(p || q) for "reverse-kl", KL(q || p)
    for "forward-kl", ``mix KL(q || m) + (1 - mix) KL(p || m)`` with ``m = mix q + (1 - mix) p`` for
    "jsd". ``top_k`` tells only so many of the other's most probable tokens apart; 0: all.
    """

    role: str
    kind: Literal["reverse-kl", "forward-kl", "jsd"] = "reverse-kl"
    top_k: int = 0
    mix: float = 0.5


@dataclass(frozen=True)
class RoleSpec:
    """One model in the dataflow.

    ``outputs`` maps what a forward pass gives ("logprobs", "values", "scores", ...) to the column
    that it becomes before the update; ``computes`` is what :meth:`Algorithm.loss` finds in ``out``.
    """

    name: str
    model: ModelKind = "policy"
    trained: bool = False
    outputs: Mapping[str, str] = field(default_factory=dict)
    computes: tuple[str, ...] = ("logprobs",)
    init_from: str | None = None
    """Role whose ``model.path`` is the starting point where the config names none."""
    epochs: int | None = None
    """Passes over a batch; None takes ``algo.epochs``."""
    minibatch_prompts: int | None = None
    """Prompts an optimiser step; None takes ``algo.minibatch_prompts``."""
    from_step: int = 0
    """First step of the run that trains this role (critic warm-up delays the policy)."""
    divergence: Divergence | None = None
    """What ``out.divergence`` is, where ``computes`` names it."""
    optional: bool = False
    """Started only where the config has ``roles.NAME``; else its columns come from elsewhere."""

    def schedule(self, options: Any) -> tuple[int, int]:
        """Epochs, and prompts an optimiser step (0: all), under an algorithm's ``Config``."""
        epochs = options.epochs if self.epochs is None else self.epochs
        prompts = self.minibatch_prompts
        return epochs, options.minibatch_prompts if prompts is None else prompts


REWARD_MODEL = RoleSpec("reward", model="score", outputs={"scores": "rewards"}, optional=True)
"""What every method that samples may have: a model whose scores are the rewards."""


def known_roles(algorithm: Algorithm) -> tuple[RoleSpec, ...]:
    """The method's roles, and the reward model where it samples and has none of its own."""
    own = tuple(algorithm.roles())
    if algorithm.offline or any(role.name == REWARD_MODEL.name for role in own):
        return own
    return (*own, REWARD_MODEL)


def roles_of(config: Config, algorithm: Algorithm | None = None) -> tuple[RoleSpec, ...]:
    """The roles that a run starts: all but the optional ones that its config does not name."""
    made = algorithm or config.algo.load()(config.algo.config)
    return tuple(r for r in known_roles(made) if not r.optional or r.name in config.roles)


def check_beside(roles: Sequence[RoleSpec], pool_of: Mapping[str, str]) -> None:
    """Raise ConfigError where a role is measured from one that lies in another pool."""
    for role in roles:
        other = None if role.divergence is None else role.divergence.role
        if other is not None and pool_of[other] != pool_of[role.name]:
            raise ConfigError(
                f"roles.{other}.pool={pool_of[other]}: '{role.name}' is measured from '{other}' on "
                f"the same devices, and lies in pool '{pool_of[role.name]}': set "
                f"roles.{other}.pool={pool_of[role.name]}"
            )


def reads_text(role: RoleSpec) -> bool:
    """Whether a role may have a tokenizer of its own: a score model that is not trained."""
    return role.model == "score" and not role.trained
