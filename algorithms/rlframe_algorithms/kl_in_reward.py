"""Base of the methods that may subtract a KL penalty from the reward, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlframe import Algorithm, RoleSpec, Term, ops
from rlframe.config import check_choice, check_range

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["KLInReward"]

_COEF = "kl_reward_coef"


class KLInReward(Algorithm):
    """``reward_t -= coef * KL_t``, KL estimated between the weights before the update and the
    reference on the tokens that the policy sampled (1909.08593, equation 2).

    The weight is fixed, or moves so that the KL of a response comes near ``kl_target``; it is a
    scalar of the step and part of the snapshot. A subclass adds :meth:`kl_rewards` to its rewards.
    This is apart from ``kl_coef``, the KL that the loss minimises; both may be on.

    verl: ``algorithm.use_kl_in_reward``, ``algorithm.kl_ctrl.*``. TRL: ``kl_coef`` of its PPO,
    fixed only.
    """  # noqa: D205

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of the KL in the reward."""

        kl_reward_coef: float = 0.0
        """Weight of the KL in the reward, at least 0; 0 is off. The first one under kl_target."""
        kl_reward_estimator: Literal["k1", "k2", "k3"] = "k1"
        """k1, k2 or k3; k1 and k3 are unbiased."""
        kl_target: float | None = None
        """KL of a response to steer towards, nats, above 0; None keeps the weight fixed."""
        kl_horizon: float = 10_000.0
        """Episodes over which the weight moves, above 0; read with kl_target."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "kl_reward_coef", 0)
            check_choice(self, "kl_reward_estimator", "k1", "k2", "k3")
            check_range(self, "kl_target", above=0)
            check_range(self, "kl_horizon", above=0)
            if self.kl_target is not None and self.kl_reward_coef == 0:
                raise ValueError("kl_target needs a kl_reward_coef above 0 to start from")

    config: Config

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(config, **options)
        chosen = self.config
        self._kl = ops.KLController(chosen.kl_reward_coef, chosen.kl_target, chosen.kl_horizon)

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """The columns of the base, and both log-probabilities where the reward has a KL."""
        if not self.config.kl_reward_coef:
            return Algorithm.reads
        return (*Algorithm.reads, "response_mask", "old_logprobs", "ref_logprobs")

    def roles(self) -> tuple[RoleSpec, ...]:
        """The policy, and the reference where the loss or the reward has a KL to it."""
        roles = super().roles()
        if not self.config.kl_reward_coef or any(role.name == "reference" for role in roles):
            return roles
        outputs = {"logprobs": "ref_logprobs"}
        return (*roles, RoleSpec("reference", outputs=outputs, init_from="policy"))

    def kl_rewards(self, batch: Batch) -> Tensor:
        """What the KL adds to the reward of each token: (B, R), 0 outside ``response_mask``.

        Only where ``kl_reward_coef`` is above 0: otherwise the columns are not there.
        """
        return ops.kl_reward(
            batch["old_logprobs"],
            batch["ref_logprobs"],
            batch["response_mask"],
            batch.scalar(_COEF),
            self.config.kl_reward_estimator,
        )

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """``reward_kl``: nats a response, by the estimator that is trained on; and its weight."""
        figures = super().metrics(role, out, batch)
        if role != "policy" or not self.config.kl_reward_coef:
            return figures
        old, ref = batch["old_logprobs"], batch["ref_logprobs"]
        kl = ops.kl_value(old, ref, self.config.kl_reward_estimator)
        figures["reward_kl"] = Term(kl, reduction="seq-mean-token-sum")
        weight = batch["scalars", _COEF].to(kl.dtype)
        figures[_COEF] = Term(weight, reduction="mean")
        return figures

    def scalars(self) -> Mapping[str, float]:
        """The weight of this step."""
        return {_COEF: self._kl.coef} if self.config.kl_reward_coef else {}

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Steer the weight by the KL of the step; a step without a policy update changes none."""
        if self.config.kl_reward_coef and "actor/reward_kl" in metrics:
            self._kl.update(metrics["actor/reward_kl"], metrics["collect/episodes"])

    def state_dict(self) -> dict[str, Any]:
        """The weight."""
        return {_COEF: self._kl.coef} if self.config.kl_reward_coef else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        if self.config.kl_reward_coef:
            self._kl.coef = float(state[_COEF])
