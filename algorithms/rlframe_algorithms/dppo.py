"""DPPO: a trust region by divergence in place of the ratio's clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlframe import Term, ops
from rlframe.config import check_choice, check_range
from rlframe_algorithms.policy_gradient import Advantage, PolicyGradient

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe.algorithm import Output

__all__ = ["DPPO"]

_THRESHOLD = {"tv": 0.15, "kl": 0.05}


class DPPO(PolicyGradient):
    """Divergence proximal policy optimisation (2602.04879), the binary form::

        loss = 1 / sum |o_i| * sum_i sum_t -M_t sg(min(r, 20)) A_i log pi
        M_t  = 0 where D_t > threshold and pi has already moved the way that A pushes it, else 1
        D_t  = |pi - mu| of the sampled token (tv), or KL(Bernoulli(mu) || Bernoulli(pi)) (kl)

    mu is what sampled the token, ``anchor=rollout``, as the paper advises: the trust region is then
    around the sampler; ``anchor=old`` takes the weights before the update. The full forms over the
    vocabulary are not built.

    verl: ``policy_loss.loss_mode=dppo_tv`` or ``dppo_kl`` with ``clip_ratio`` as the threshold, 0.2
    unless set; around the old policy unless ``bypass_mode``. TRL: its ``dppo`` trainer.
    """  # noqa: D205,D415

    @dataclass(frozen=True)
    class Config(PolicyGradient.Config):
        """Options of DPPO."""

        advantage: Advantage = "grpo"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        divergence: Literal["tv", "kl"] = "tv"
        """tv or kl, of the sampled token's probability."""
        threshold: float | None = None
        """Largest divergence, above 0; None takes 0.15 for tv and 0.05 for kl."""
        anchor: Literal["rollout", "old"] = "rollout"
        """rollout (the probabilities that were sampled from) or old (before the update)."""
        clip_weight: float = 20.0
        """Largest weight pi / mu, above 1."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_choice(self, "divergence", "tv", "kl")
            check_range(self, "threshold", above=0)
            check_choice(self, "anchor", "rollout", "old")
            check_range(self, "clip_weight", above=1)

    config: Config

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The masked loss of each token: (b, R)."""
        kind, most = self.config.divergence, self.config.clip_weight
        anchor, advantages = batch[self._anchor], batch["advantages"]
        return ops.divergence_masked(out.logprobs, anchor, advantages, self._threshold, kind, most)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The share of tokens outside the trust region, beside the base's figures."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            outside = ops.divergence_outside(
                out.logprobs,
                batch[self._anchor],
                batch["advantages"],
                self._threshold,
                self.config.divergence,
            )
            figures["pg_clipfrac"] = Term(outside.float())
        return figures

    @property
    def _anchor(self) -> str:
        return f"{self.config.anchor}_logprobs"

    @property
    def _threshold(self) -> float:
        given = self.config.threshold
        return _THRESHOLD[self.config.divergence] if given is None else given
