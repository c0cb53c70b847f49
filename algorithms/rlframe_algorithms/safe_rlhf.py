"""Safe RLHF: reward as high as may be while the mean cost stays under a threshold."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rlframe import Column, ConfigError, RoleSpec, Row, Term, ops
from rlframe.algorithm import Example
from rlframe.config import check_range
from rlframe_algorithms.critics import critic_figures, critic_role
from rlframe_algorithms.pairs import written_text
from rlframe_algorithms.ppo import PPO

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from rlframe import Batch
    from rlframe import Config as FitConfig
    from rlframe.algorithm import Output

__all__ = ["SafeRLHF"]

_LAMBDA, _COST = "lagrange_multiplier", "episode_cost"
_COSTS, _SECOND = "costs", "second_mask"


class SafeRLHF(PPO):
    """Safe RLHF (2310.12773): PPO on a Lagrangian of a reward and a cost, each with its critic::

        maximise J_R subject to J_C = E[cost] - threshold <= 0
        ln lambda += lambda_lr * lambda * J_C,   lambda <= lambda_max
        A = (A_R - lambda A_C) / (1 + lambda)
        r_t = [last] reward - beta/2 KL_t,       c_t = [last] cost + beta/2 KL_t

    (sections 3.3 and B.1; the paper writes -d for the threshold; beta is ``kl_reward_coef``, KL is
    k1). J_C is the mean of the last 128 episodes' costs; lambda moves once a step, before the
    step's advantages. Lambda and the window are part of the snapshot; lambda travels as a scalar.

    The reward is a reward model (``roles.reward.model.path``) or any reward, the cost a cost model
    (``roles.cost.model.path``; ``--algo cost-model`` trains one) or a reward part with
    ``into: costs``. ``ptx_coef`` adds the likelihood of the responses in ``data.second``, in the
    same optimiser steps; the paper's own code takes steps of their own for it.

    Neither verl nor TRL has it. Defaults of the authors' code, but lambda_lr 0.1 and one window for
    all ranks; advantages are not whitened, as there.
    """

    @dataclass(frozen=True)
    class Config(PPO.Config):
        """Options of Safe RLHF."""

        threshold: float = 0.0
        """Mean cost of a response that is allowed."""
        lambda_init: float = 1.0
        """First weight of the cost, above 0."""
        lambda_lr: float = 0.1
        """Step size of ln lambda, at least 0."""
        lambda_max: float = 5.0
        """Largest weight of the cost, above 0."""
        cost_window: int = 128
        """Episodes whose costs are averaged, at least 1."""
        kl_reward_coef: float = 0.1
        """Weight of the KL, half in the reward and half in the cost, at least 0; 0 is off."""
        whiten: bool = False
        """Give the batch's advantages mean 0 and variance 1."""
        ptx_coef: float = 0.0
        """Weight of -log p of the responses in data.second, at least 0."""
        ptx_key: str = "response"
        """Column of data.second that holds the response."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            check_range(self, "threshold")
            check_range(self, "lambda_init", above=0)
            check_range(self, "lambda_max", above=0)
            check_range(self, "lambda_lr", 0)
            check_range(self, "cost_window", 1)
            check_range(self, "ptx_coef", 0)
            if self.lambda_init > self.lambda_max:
                raise ValueError(
                    f"lambda_init must be at most lambda_max={self.lambda_max}, "
                    f"not {self.lambda_init}"
                )

    config: Config
    columns: ClassVar[tuple[Column, ...]] = (
        *PPO.columns,
        Column("cost_returns", "BR", "float32", "algorithm", "the cost critic's target"),
    )

    def __init__(self, config: Any = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._log_lambda = math.log(self.config.lambda_init)
        self._window: deque[float] = deque(maxlen=self.config.cost_window)

    @classmethod
    def validate(cls, config: FitConfig) -> None:
        """Costs and the second data set come from somewhere. Raises ConfigError."""
        if "cost" not in config.roles and all(part.into != _COSTS for part in config.reward.parts):
            raise ConfigError(
                "safe-rlhf needs a cost for every response: name a cost model by "
                "roles.cost.model.path=PATH (--algo cost-model trains one), or give a reward part "
                "the option into: costs (as the recipe tiny_safe_rlhf.yaml does)"
            )
        if bool(config.algo.config.ptx_coef) != bool(config.data.second):
            raise ConfigError("algo.ptx_coef and data.second need each other: give both or none")

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """What PPO reads, and the same of the cost."""
        return (*super().reads, _COSTS, "cost_values")

    @property
    def masks(self) -> tuple[str, ...]:  # type: ignore[override]  # the options decide
        """The second data set's tokens have a mask of their own."""
        return ("loss_mask", _SECOND) if self.config.ptx_coef else ("loss_mask",)

    def roles(self) -> tuple[RoleSpec, ...]:
        """PPO's, the cost critic and, where the config names it, the cost model."""
        cost = RoleSpec("cost", model="score", outputs={"scores": _COSTS}, optional=True)
        return (*super().roles(), critic_role("cost_critic", "cost_values"), cost)

    def second_examples(self, row: Row) -> list[Example]:
        """The response of a row of the second data set."""
        return [Example(written_text(row, self.config.ptx_key))]

    # --- learning -----------------------------------------------------------------------------

    def advantages(self, batch: Batch) -> Mapping[str, Tensor]:
        """PPO's of the reward, mixed with those of the cost; a row needs both numbers."""
        import torch

        made = dict(super().advantages(batch))
        mask = made["loss_mask"] & ~torch.isnan(batch[_COSTS])[:, None]
        costs = ops.outcome_rewards(batch[_COSTS], mask)
        if self.config.kl_reward_coef:
            costs = costs - torch.where(mask, super().kl_rewards(batch) / 2, 0.0)
        lam = self._policy_lambda(mask)
        cost, returns = ops.gae(costs, batch["cost_values"], mask, self.config.gamma, lam)
        critic_lam = self._critic_lambda(batch)
        if critic_lam is not None:
            returns = ops.gae(costs, batch["cost_values"], mask, self.config.gamma, critic_lam)[1]
        if self.config.whiten:
            cost = ops.masked_whiten(cost, mask, batch.sum)
        weight = batch.scalar(_LAMBDA)
        mixed = (made["advantages"] - weight * cost) / (1 + weight)
        made |= {"advantages": mixed, "cost_returns": returns, "loss_mask": mask}
        return made

    def kl_rewards(self, batch: Batch) -> Tensor:
        """Half of the KL penalty; the cost has the other half."""
        return super().kl_rewards(batch) / 2

    def loss(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """PPO's terms; the cost critic's; ``ptx_loss`` where it is asked for."""
        if role == "cost_critic":
            values, returns = batch["cost_values"], batch["cost_returns"]
            clip = self.config.value_clip
            return {"vf_loss": Term(ops.clipped_value_loss(out.values, values, returns, clip))}
        terms = super().loss(role, out, batch)
        if role == "policy" and self.config.ptx_coef:
            terms["ptx_loss"] = Term(-out.logprobs, mask=_SECOND, coef=self.config.ptx_coef)
        return terms

    def metrics(self, role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        """PPO's, the weight of the cost and the mean cost in the window."""
        if role == "cost_critic":
            values, returns = batch["cost_values"], batch["cost_returns"]
            return critic_figures(out.values, values, returns, self.config.value_clip)
        figures = super().metrics(role, out, batch)
        if role == "policy":
            for name in (_LAMBDA, _COST):
                value = batch["scalars", name].to(out.logprobs.dtype)
                figures[name] = Term(value, mask=None, reduction="mean")
        return figures

    # --- state --------------------------------------------------------------------------------

    def scored(self, batch: Batch) -> None:
        """Take the step's costs into the window, each episode's once, and move lambda."""
        super().scored(batch)
        train = np.asarray(batch["train"], bool)
        costs = np.asarray(batch[_COSTS], np.float64)[train]
        ids = np.asarray(batch["episode_ids"])[train]
        last = {int(episode): float(cost) for episode, cost in zip(ids, costs, strict=True)}
        self._window.extend(cost for cost in last.values() if math.isfinite(cost))
        if self._window:
            excess = self._mean_cost() - self.config.threshold
            moved = self._log_lambda + self.config.lambda_lr * math.exp(self._log_lambda) * excess
            self._log_lambda = min(moved, math.log(self.config.lambda_max))

    def _mean_cost(self) -> float:
        return math.fsum(self._window) / len(self._window) if self._window else 0.0

    def scalars(self) -> Mapping[str, float]:
        """Those of PPO, lambda and the mean cost."""
        mine = {_LAMBDA: math.exp(self._log_lambda), _COST: self._mean_cost()}
        return {**super().scalars(), **mine}

    def state_dict(self) -> dict[str, Any]:
        """That of PPO, ln lambda and the window."""
        mine = {"log_lambda": self._log_lambda, "costs": list(self._window)}
        return {**super().state_dict(), **mine}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The reverse of :meth:`state_dict`."""
        super().load_state_dict(state)
        self._log_lambda = float(state["log_lambda"])
        self._window.clear()
        self._window.extend(float(cost) for cost in state["costs"])
