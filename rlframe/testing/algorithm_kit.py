"""What every method must hold, for its author to run: subclass :class:`AlgorithmKit`, give a name.

class TestMine(AlgorithmKit):
    name = "my_methods.py:Mine"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from rlframe.algorithm import Algorithm, Output, RoleSpec, Term
from rlframe.errors import PluginError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.learning.advantages import checked_columns
from rlframe.testing.advantage_checks import AdvantageChecks
from rlframe.testing.algorithm_cases import MIXED, Case, RowCase, leaves_of, make_case
from rlframe.testing.one_step import FIXED_LENGTH, one_step, same_step
from rlframe.testing.simulated_update import micro_of
from rlframe.testing.toy_task import ToyTask

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["FIXED_LENGTH", "AlgorithmKit", "one_step"]


class AlgorithmKit(AdvantageChecks):
    """Conformance of one method. Class attributes and the two hooks may be overridden."""

    name: ClassVar[str] = ""
    """Registered name, ``file.py:Class`` or ``pkg.mod:Class``."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the method's ``Config`` that differ from their defaults."""
    toy_steps: ClassVar[int] = 30
    """Steps after which the toy task is learned."""
    toy_success: ClassVar[float] = 0.8
    """Probability of a right token (0.2 at first) that counts as learned."""
    rows: ClassVar[Sequence[RowCase]] = MIXED
    """The batch that most tests use."""

    # --- hooks --------------------------------------------------------------------------------

    def extra_columns(self, rows: Sequence[RowCase]) -> Mapping[str, Any]:
        """Columns that only this method's data or environment writes, one entry a row."""
        return {}

    def reference_loss(
        self, role: str, columns: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> float | None:
        """The loss in plain float64 code, or None where the author has none.

        ``columns`` are padded (B, R) or (B,), ``outputs`` (B, R) float64.
        """
        return None

    def toy_task(self) -> ToyTask:
        """The task that a fresh instance must learn."""
        return ToyTask(self.algorithm())

    def algorithm(self) -> Algorithm:
        """A fresh instance with ``options``."""
        if not self.name:
            raise PluginError("set AlgorithmKit.name to the algorithm to check")
        made = resolve(current_host(), "algorithm", self.name).value
        result: Algorithm = made(made.Config(**self.options))
        return result

    # --- tests --------------------------------------------------------------------------------

    def test_loss_equals_the_float64_reference(self) -> None:
        """Loss of a mixed batch against :meth:`reference_loss`."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            micro = micro_of(case.batch, np.arange(len(case.batch)))
            columns = {n: v for n, v in micro.items() if isinstance(v, Tensor)}
            wanted = self.reference_loss(role.name, columns, leaves)
            if wanted is None:
                pytest.skip(f"{self.name} gives no reference_loss for role '{role.name}'")
            got = one_step(algorithm, role, case.batch, leaves)
            assert got.loss == pytest.approx(wanted, rel=1e-5, abs=1e-6)

    def test_masked_slots_reach_neither_loss_nor_gradient(self) -> None:
        """NaN in every slot that cannot count, in outputs and columns, changes nothing at all."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            clean = one_step(algorithm, role, case.batch, leaves, budget=20)
            spoiled = self._case(algorithm, masked_value=float("nan"))
            same_step(
                one_step(algorithm, role, spoiled.batch, leaves, budget=20, dirty=True), clean
            )
            assert np.isfinite(clean.loss)
            assert any(g.abs().sum() > 0 for g in clean.gradients.values()), "nothing is learned"

    def test_splits_and_ranks_change_nothing(self) -> None:
        """Loss, figures and gradients for every micro-batch size and rank count."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            whole = one_step(algorithm, role, case.batch, leaves)
            for budget, ranks in ((1, 1), (14, 1), (1000, 2), (9, 3), (1, len(case.batch) + 1)):
                split = one_step(algorithm, role, case.batch, leaves, budget=budget, ranks=ranks)
                same_step(split, whole)

    def test_row_order_changes_nothing(self) -> None:
        """Rows shuffled before advantages and update: everything follows its row."""
        algorithm = self.algorithm()
        order = np.random.default_rng(3).permutation(len(self.rows))
        case = self._case(algorithm)
        shuffled = case.scored.take(order)
        shuffled = shuffled.add(checked_columns(algorithm, shuffled))
        for role in _trained(algorithm):
            leaves = leaves_of(role, case)
            moved = {n: leaf[torch.from_numpy(order)] for n, leaf in leaves.items()}
            got = one_step(algorithm, role, shuffled, moved, budget=12)
            whole = one_step(algorithm, role, case.batch, leaves)
            expected = {n: g[torch.from_numpy(order)] for n, g in whole.gradients.items()}
            same_step(got, dataclasses.replace(whole, gradients=expected), rel=1e-5)

    def test_a_good_token_becomes_more_likely(self) -> None:
        """Descent raises the log-probability of tokens with a positive advantage, and vice versa.

        By ``pg_loss`` where there is one, on policy and at the reference. A method without
        advantages raises every counted token.
        """
        algorithm = self.algorithm()
        role = algorithm.roles()[0]
        case = self._case(algorithm)
        logprobs = leaves_of(role, case)["logprobs"].float()
        ours = [r for r in algorithm.roles() if r.model == "policy"]
        names = [n for r in ours for out, n in r.outputs.items() if out == "logprobs"]
        given = dict.fromkeys([*names, "rollout_logprobs"], logprobs)
        case = self._case(algorithm, given=given)
        leaves = leaves_of(role, case) | {"logprobs": logprobs.double()}
        _keep_the_policy_gradient(algorithm)
        gradient = one_step(algorithm, role, case.batch, leaves).gradients["logprobs"]
        micro = micro_of(case.batch, np.arange(len(case.batch)))
        mask = micro["loss_mask"]
        wanted = micro["advantages"] if "advantages" in micro else torch.ones_like(gradient)
        assert (wanted[mask] != 0).any()
        counted = mask & (gradient != 0) if "drops-tokens" in algorithm.capabilities else mask
        assert counted.any()
        assert torch.equal(gradient[counted].sign(), -wanted[counted].sign().double())
        assert (gradient[~mask] == 0).all()

    def test_extreme_ratios_stay_finite(self) -> None:
        """Tokens that became e^200 times as probable, or as improbable: finite in float32."""
        algorithm = self.algorithm()
        role = algorithm.roles()[0]
        case = self._case(algorithm)
        if "logprobs" not in role.computes:
            pytest.skip(f"{self.name} has no probabilities")
        shape = leaves_of(role, case)["logprobs"].shape
        high = torch.arange(shape.numel()).reshape(shape) % 2 == 0
        new, old = torch.where(high, -0.01, -200.0), torch.where(high, -200.0, -0.01)
        names = [n for r in algorithm.roles() for out, n in r.outputs.items() if out == "logprobs"]
        case = self._case(algorithm, given=dict.fromkeys([*names, "rollout_logprobs"], old))
        leaves = {n: leaf.float() for n, leaf in leaves_of(role, case).items()}
        got = one_step(algorithm, role, case.batch, leaves | {"logprobs": new})
        assert np.isfinite(got.loss)
        assert all(torch.isfinite(g).all() for g in got.gradients.values())

    @pytest.mark.parametrize("masks", [("1", "1", "1"), ("", "", ""), ("000", "", "0"), ("1", "")])
    def test_one_token_and_empty_responses(self, masks: tuple[str, ...]) -> None:
        """Finite loss and gradient; both zero where no token counts."""
        algorithm = self.algorithm()
        rows = [RowCase(1, mask, float(n)) for n, mask in enumerate(masks)]
        case = self._case(algorithm, rows)
        for role in _trained(algorithm):
            got = one_step(algorithm, role, case.batch, leaves_of(role, case), budget=3, ranks=2)
            assert np.isfinite(got.loss)
            assert all(torch.isfinite(g).all() for g in got.gradients.values())
            if not any("1" in mask for mask in masks):
                assert got.loss == 0
                assert all((g == 0).all() for g in got.gradients.values())

    def test_groups_of_any_size_and_without_signal(self) -> None:
        """Uneven groups, a group of one, equal rewards: finite; 0 where that is claimed."""
        algorithm = self.algorithm()
        if algorithm.offline:
            pytest.skip(f"{self.name} is offline: it has no rewards")
        batch = self._case(algorithm).batch
        if "advantages" not in batch:
            pytest.skip(f"{self.name} has no advantages")
        advantages = batch["advantages"]
        assert torch.isfinite(advantages).all()
        if "group-relative" not in algorithm.capabilities:
            pytest.skip(f"{self.name} does not claim 'group-relative'")
        zero = (9,) if "shaped-rewards" in algorithm.capabilities else (5, 9)
        alone = torch.tensor([row.group in zero for row in MIXED])
        assert (advantages[alone] == 0).all()
        assert (advantages[~alone] != 0).any()

    def test_learns_the_toy_task(self) -> None:
        """From a probability of 0.2 for the right token to more than ``toy_success``."""
        task = self.toy_task()
        assert task.success() == pytest.approx(0.2)
        task.run(self.toy_steps)
        assert task.success() > self.toy_success

    def test_state_survives_a_snapshot(self) -> None:
        """A fresh copy with the state of a used one gives the same scalars and state."""
        task = self.toy_task()
        task.run(2)
        algorithm = task.algorithm
        copy = self.algorithm()
        copy.load_state_dict(algorithm.state_dict())
        assert dict(copy.scalars()) == dict(algorithm.scalars())
        assert copy.state_dict() == algorithm.state_dict()

    # --- inside -------------------------------------------------------------------------------

    def _case(
        self, algorithm: Algorithm, rows: Sequence[RowCase] | None = None, **more: Any
    ) -> Case:
        chosen = _own_episodes(self.rows if rows is None else rows)
        return make_case(algorithm, chosen, extra=self.extra_columns, **more)

    def _cases(
        self, rows: Sequence[RowCase] | None = None
    ) -> Iterator[tuple[Algorithm, RoleSpec, Case]]:
        algorithm = self.algorithm()
        for role in _trained(algorithm):
            yield algorithm, role, self._case(algorithm, rows)


def _keep_the_policy_gradient(algorithm: Algorithm) -> None:
    """Leave out what is added to ``pg_loss`` (entropy, likelihood of right answers)."""
    whole = algorithm.loss

    def loss(role: str, out: Output, batch: TensorDict) -> dict[str, Term]:
        terms = whole(role, out, batch)
        return {"pg_loss": terms["pg_loss"]} if "pg_loss" in terms else terms

    setattr(algorithm, "loss", loss)  # noqa: B010 - a method of this one instance


def _trained(algorithm: Algorithm) -> list[RoleSpec]:
    return [role for role in algorithm.roles() if role.trained]


def _own_episodes(rows: Sequence[RowCase]) -> list[RowCase]:
    """Episode ids that stay with their rows when these are reordered."""
    return [
        row if row.episode is not None else dataclasses.replace(row, episode=number)
        for number, row in enumerate(rows)
    ]
