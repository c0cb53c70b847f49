"""On-policy distillation: the student samples, a teacher says how likely each token should be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from rlframe import Algorithm, RoleSpec, Term, ops
from rlframe.algorithm import Divergence
from rlframe.config import check_choice, check_range

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["Distill"]


class Distill(Algorithm):
    """Distillation on the student's own samples (GKD, 2306.13649, with lambda 1).

    ``form=full`` minimises, token by token, a divergence between the whole next-token
    distributions: p of the student, q of the teacher (``roles.teacher.model.path``)::

        reverse-kl  KL(p || q)      forward-kl  KL(q || p)
        jsd         mix KL(q || m) + (1 - mix) KL(p || m),   m = mix q + (1 - mix) p

    The teacher's logits are computed beside the student's, in chunks, so both lie in one pool.
    ``top_k`` tells the teacher's k most probable tokens apart and takes the others together.
    ``form=sampled`` is the policy gradient of KL(p || q) from the sampled tokens alone:
    ``-r (log q - log p_old)`` with ``r = p / p_old``, every token for itself; the teacher may then
    lie in a pool of its own. Rewards are logged, not learned from: ``reward=[]`` runs without.

    TRL's GKD mixes in the data's own responses (``lmbda`` 0.5) and takes jsd with ``beta`` (our
    ``mix``) 0.5 by default; here the samples are always the student's. verl's distillation keeps
    the teacher's top-k log-probabilities and drops the rest of the mass. Gradients do not flow
    through the sampling in either form.
    """

    @dataclass(frozen=True)
    class Config(Algorithm.Config):
        """Options of distillation."""

        samples_per_prompt: int = 1
        """Responses drawn for each prompt, at least 1."""
        form: Literal["full", "sampled"] = "full"
        """full (whole distributions) or sampled (the sampled tokens alone)."""
        divergence: Literal["reverse-kl", "forward-kl", "jsd"] = "reverse-kl"
        """reverse-kl, forward-kl or jsd; sampled knows reverse-kl only."""
        top_k: int = 0
        """The teacher's most probable tokens that are told apart, at least 0; 0: all."""
        mix: float = 0.5
        """The teacher's share in jsd's mixture, above 0 and below 1."""
        clip_ratio: float | None = None
        """How far the ratio p / p_old may leave 1 in form sampled, in (0, 1]; None: any way."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_choice(self, "form", "full", "sampled")
            check_choice(self, "divergence", "reverse-kl", "forward-kl", "jsd")
            check_range(self, "top_k", 0)
            check_range(self, "mix", above=0, below=1)
            check_range(self, "clip_ratio", above=0, high=1)
            if self.form == "sampled" and (self.divergence != "reverse-kl" or self.top_k):
                raise ValueError(
                    "form=sampled sees one token of each distribution: it knows reverse-kl without "
                    "top_k only; take form=full"
                )
            if self.form == "full" and self.clip_ratio is not None:
                raise ValueError("clip_ratio is of form=sampled: form=full has no ratio")

    config: Config
    offline: ClassVar[bool] = False

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """Both log-probabilities of the sampled tokens, or nothing."""
        return ("old_logprobs", "teacher_logprobs") if self.config.form == "sampled" else ()

    def roles(self) -> tuple[RoleSpec, ...]:
        """The student, a reference where ``kl_coef`` asks for it, the teacher."""
        policy, *others = super().roles()
        if self.config.form == "sampled":
            teacher = RoleSpec("teacher", model="teacher", outputs={"logprobs": "teacher_logprobs"})
            return (policy, *others, teacher)
        form = Divergence("teacher", self.config.divergence, self.config.top_k, self.config.mix)
        computes = (*policy.computes, "divergence")
        policy = dataclasses.replace(policy, outputs={}, computes=computes, divergence=form)
        return (policy, *others, RoleSpec("teacher", model="teacher"))

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Minus the sampled reverse KL of each token: (B, R), nats."""
        if self.config.form == "full":
            return {}
        return {"advantages": batch["teacher_logprobs"] - batch["old_logprobs"]}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """The divergence, or the policy gradient of it: (b, R)."""
        if self.config.form == "full":
            divergence: Tensor = out.divergence
            return divergence
        old, advantages = batch["old_logprobs"], batch["advantages"]
        if self.config.clip_ratio is None:
            loss: Tensor = -ops.log_ratio(out.logprobs, old).exp() * advantages
            return loss
        return ops.clipped_surrogate(out.logprobs, old, advantages, self.config.clip_ratio)

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """``teacher_kl``: nats a token, of the sampled tokens under the weights before."""
        figures = super().metrics(role, out, batch)
        if role == "policy" and self.config.form == "sampled":
            figures["teacher_kl"] = Term(-batch["advantages"])
        return figures
