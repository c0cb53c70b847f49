"""Base of the methods without a critic: an advantage a response, by option, and a loss a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlframe import Group, Request, Row, Term, ops
from rlframe.config import check_choice, check_range
from rlframe_algorithms.kl_in_reward import KLInReward

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe.algorithm import Output

__all__ = ["ADVANTAGES", "Advantage", "PolicyGradient"]

Advantage = Literal[
    "grpo", "dr-grpo", "rloo", "opo", "gpg", "gdpo", "maxrl", "pass@k", "remax", "batch", "reward"
]
GROUP_RELATIVE = ("grpo", "dr-grpo", "rloo", "opo", "gpg", "gdpo", "maxrl", "pass@k")
ADVANTAGES = (*GROUP_RELATIVE, "remax", "batch", "reward")
"""What ``algo.advantage`` takes; the functions are in ``rlframe.ops.advantages``."""


class PolicyGradient(KLInReward):
    """An advantage for each response, and ``-A log pi`` as the loss (REINFORCE).

    A subclass replaces :meth:`policy_loss`, or defaults of the options, which every method has:
    ``--algo gspo algo.advantage=rloo`` is GSPO's loss with RLOO's advantages. The outcome of a
    response is its reward, plus the overlong penalty, plus the sum of its KL penalties; the filter
    of :meth:`accept` looks at the reward alone.
    """

    @dataclass(frozen=True)
    class Config(KLInReward.Config):
        """Options of the methods without a critic."""

        advantage: Advantage = "reward"
        """grpo, dr-grpo, rloo, opo, gpg, gdpo, maxrl, pass@k, remax, batch or reward."""
        reward_weights: tuple[float, ...] = ()
        """With advantage=gdpo: one for each reward, by alphabetical order; () is all 1."""
        drop_equal_groups: bool = False
        """Draw further prompts for groups whose rewards are all equal (dynamic sampling)."""
        overlong_buffer: float = 0.0
        """Last share of the allowed tokens in which the penalty grows, 0 to 1; 0 is off."""
        overlong_penalty: float = 1.0
        """Penalty at the limit, in units of reward, at least 0; read with overlong_buffer."""
        mask_truncated: bool = False
        """Leave responses that met the limit out of the loss (overlong filtering)."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_choice(self, "advantage", *ADVANTAGES)
            check_range(self, "overlong_buffer", 0, 1)
            check_range(self, "overlong_penalty", 0)
            needs_others = self.advantage in GROUP_RELATIVE or self.drop_equal_groups
            if needs_others and self.samples_per_prompt < 2:
                raise ValueError(
                    f"samples_per_prompt must be at least 2, not {self.samples_per_prompt}: "
                    "others give the baseline"
                )
            if self.reward_weights and self.advantage != "gdpo":
                raise ValueError(
                    "reward_weights is read with advantage=gdpo; the weights of the outcome are "
                    "those of the rewards themselves"
                )
            shaped = self.kl_reward_coef or self.overlong_buffer
            if self.advantage == "gdpo" and shaped:
                raise ValueError(
                    "advantage=gdpo reads each reward apart: kl_reward_coef and overlong_buffer "
                    "must be 0 (use kl_coef, and a reward of length)"
                )

    config: Config

    @property
    def capabilities(self) -> frozenset[str]:  # type: ignore[override]  # the options decide
        """Group-relative by the advantage; shaped where length or KL enters the reward."""
        relative = {"group-relative"} if self.config.advantage in GROUP_RELATIVE else set()
        shaped = self.config.kl_reward_coef or self.config.overlong_buffer
        return frozenset(relative | ({"shaped-rewards"} if shaped else set()))

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """The columns of the base and those of the options."""
        more: list[str] = []
        if self.config.advantage == "gdpo":
            more.append("reward_parts")
        if self.config.overlong_buffer:
            more += ["turn_tokens", "response_limit"]
        if self.config.mask_truncated:
            more.append("finish_reason")
        return (*super().reads, *more)

    # --- collecting ---------------------------------------------------------------------------

    def requests(self, row: Row) -> list[Request]:
        """The samples of a prompt, and under remax a greedy one that is only looked at."""
        samples = super().requests(row)
        if self.config.advantage == "remax":
            samples.append(row.request(train=False, temperature=0.0))
        return samples

    @property
    def accepts_by_reward(self) -> bool:
        """Only where groups are chosen at all."""
        return bool(self.config.drop_equal_groups)

    def accept(self, group: Group) -> bool:
        """Whether the group's rewards, as they came, differ among the responses that count."""
        if not self.config.drop_equal_groups:
            return True
        known = [e.reward for e in group.trained if e.reward is not None and e.length]
        return ops.has_signal(known)

    # --- learning -----------------------------------------------------------------------------

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """Advantages (B,), and a loss mask where truncated responses are left out."""
        return {"advantages": self.response_advantages(batch), **self.kept(batch)}

    def response_advantages(self, batch: Batch) -> Tensor:
        """The advantage that ``algo.advantage`` names, of shaped outcomes: (B,)."""
        if self.config.advantage == "gdpo":
            return ops.decoupled_normalised(batch, self.config.reward_weights, batch.sum)
        return ops.outcome_advantages(self.config.advantage, self.shaped(batch), batch.sum)

    def shaped(self, batch: Batch, *, kl: bool = True) -> dict[str, Tensor]:
        """The per-row columns that advantages read, ``rewards`` (B,) with penalties added.

        ``kl=False`` leaves the KL to a method that spreads it over the tokens.
        """
        names = ("rewards", "group_ids", "episode_ids", "train", "response_tokens")
        columns = {name: batch[name] for name in names}
        if self.config.overlong_buffer:
            columns["rewards"] = columns["rewards"] + self.config.overlong_penalty * self._overlong(
                batch
            )
        if kl and self.config.kl_reward_coef:
            columns["rewards"] = columns["rewards"] + self._episode_kl(batch)
        return columns

    def kept(self, batch: Batch) -> dict[str, Any]:
        """``loss_mask`` (B,), False in truncated responses, where the option says so."""
        if not self.config.mask_truncated:
            return {}
        import torch

        return {"loss_mask": torch.tensor([why != "length" for why in batch["finish_reason"]])}

    def policy_loss(self, out: Output, batch: TensorDict) -> Tensor:
        """``-A log pi`` of each token: (b, R)."""
        return ops.policy_gradient(out.logprobs, batch["advantages"])

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """The KL of the old to the new policy under verl's name, and the figures of the reward."""
        figures = super().metrics(role, out, batch)
        if role == "policy":
            figures["ppo_kl"] = Term(ops.kl_value(batch["old_logprobs"], out.logprobs))
        return figures

    def _overlong(self, batch: Batch) -> Tensor:
        """That of each row's episode: of its longest turn, since the limit is one of turns."""
        limit = batch["response_limit"].double()
        lengths = ops.episode_most(batch["turn_tokens"], batch["episode_ids"])
        return ops.overlong_penalty(lengths, limit, self.config.overlong_buffer * limit)

    def _episode_kl(self, batch: Batch) -> Tensor:
        """The KL penalties of each row's whole episode, summed over its tokens: (B,)."""
        return ops.episode_sums(self.kl_rewards(batch).sum(1), batch["episode_ids"])
