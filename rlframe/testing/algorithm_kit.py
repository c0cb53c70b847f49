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

from rlframe.advantages import checked_columns
from rlframe.algorithm import Algorithm, Output, RoleSpec
from rlframe.batch import Batch
from rlframe.errors import PluginError
from rlframe.host.host import current_host
from rlframe.host.resolve import resolve
from rlframe.plan import MiniBatchPlan, plan_update
from rlframe.testing.algorithm_cases import MIXED, Case, RowCase, leaves_of, make_case
from rlframe.testing.simulated_update import Rows, micro_of, simulate_step
from rlframe.testing.toy_task import ToyTask

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["FIXED_LENGTH", "AlgorithmKit"]

FIXED_LENGTH = 8.0
"""Constant of the fixed-length reduction, tokens."""


@dataclasses.dataclass(frozen=True)
class _Result:
    """A step's loss, figures, and gradients of every output by batch row."""

    loss: float
    figures: Mapping[str, float]
    gradients: Mapping[str, Tensor]


class AlgorithmKit:
    """Conformance of one method. Class attributes and the two hooks may be overridden."""

    name: ClassVar[str] = ""
    """Registered name, ``file.py:Class`` or ``pkg.mod:Class``."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the method's ``Config`` that differ from their defaults."""
    toy_steps: ClassVar[int] = 30
    """Steps after which the toy task is learned (from 0.2 to 0.8)."""

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
            got = _step(algorithm, role, case.batch, leaves)
            assert got.loss == pytest.approx(wanted, rel=1e-5, abs=1e-6)

    def test_masked_slots_reach_neither_loss_nor_gradient(self) -> None:
        """NaN in every slot that cannot count, in outputs and columns, changes nothing at all."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            clean = _step(algorithm, role, case.batch, leaves, budget=20)
            spoiled = self._case(algorithm, masked_value=float("nan"))
            _same(_step(algorithm, role, spoiled.batch, leaves, budget=20, dirty=True), clean)
            assert np.isfinite(clean.loss)
            assert any(g.abs().sum() > 0 for g in clean.gradients.values()), "nothing is learned"

    def test_splits_and_ranks_change_nothing(self) -> None:
        """Loss, figures and gradients for every micro-batch size and rank count."""
        for algorithm, role, case in self._cases():
            leaves = leaves_of(role, case)
            whole = _step(algorithm, role, case.batch, leaves)
            for budget, ranks in ((1, 1), (14, 1), (1000, 2), (9, 3), (1, len(case.batch) + 1)):
                split = _step(algorithm, role, case.batch, leaves, budget=budget, ranks=ranks)
                _same(split, whole)

    def test_row_order_changes_nothing(self) -> None:
        """Rows shuffled before advantages and update: everything follows its row."""
        algorithm = self.algorithm()
        order = np.random.default_rng(3).permutation(len(MIXED))
        case = self._case(algorithm)
        shuffled = case.scored.take(order)
        shuffled = shuffled.add(checked_columns(algorithm, shuffled))
        for role in _trained(algorithm):
            leaves = leaves_of(role, case)
            moved = {n: leaf[torch.from_numpy(order)] for n, leaf in leaves.items()}
            got = _step(algorithm, role, shuffled, moved, budget=12)
            whole = _step(algorithm, role, case.batch, leaves)
            expected = {n: g[torch.from_numpy(order)] for n, g in whole.gradients.items()}
            _same(got, dataclasses.replace(whole, gradients=expected), rel=1e-5)

    def test_a_good_token_becomes_more_likely(self) -> None:
        """Descent raises the log-probability of tokens with a positive advantage, and vice versa.

        On policy and at the reference. A method without advantages raises every counted token.
        """
        algorithm = self.algorithm()
        role = algorithm.roles()[0]
        case = self._case(algorithm)
        logprobs = leaves_of(role, case)["logprobs"].float()
        names = [n for r in algorithm.roles() for out, n in r.outputs.items() if out == "logprobs"]
        given = dict.fromkeys([*names, "rollout_logprobs"], logprobs)
        case = self._case(algorithm, given=given)
        leaves = leaves_of(role, case) | {"logprobs": logprobs.double()}
        gradient = _step(algorithm, role, case.batch, leaves).gradients["logprobs"]
        micro = micro_of(case.batch, np.arange(len(case.batch)))
        mask = micro["loss_mask"]
        wanted = micro["advantages"] if "advantages" in micro else torch.ones_like(gradient)
        assert (wanted[mask] != 0).any()
        assert torch.equal(gradient[mask].sign(), -wanted[mask].sign().double())
        assert (gradient[~mask] == 0).all()

    def test_extreme_ratios_stay_finite(self) -> None:
        """Tokens that became e^200 times as probable, or as improbable: finite in float32."""
        algorithm = self.algorithm()
        role = algorithm.roles()[0]
        case = self._case(algorithm)
        shape = leaves_of(role, case)["logprobs"].shape
        high = torch.arange(shape.numel()).reshape(shape) % 2 == 0
        new, old = torch.where(high, -0.01, -200.0), torch.where(high, -200.0, -0.01)
        names = [n for r in algorithm.roles() for out, n in r.outputs.items() if out == "logprobs"]
        case = self._case(algorithm, given=dict.fromkeys([*names, "rollout_logprobs"], old))
        leaves = {n: leaf.float() for n, leaf in leaves_of(role, case).items()}
        got = _step(algorithm, role, case.batch, leaves | {"logprobs": new})
        assert np.isfinite(got.loss)
        assert all(torch.isfinite(g).all() for g in got.gradients.values())

    @pytest.mark.parametrize("masks", [("1", "1", "1"), ("", "", ""), ("000", "", "0"), ("1", "")])
    def test_one_token_and_empty_responses(self, masks: tuple[str, ...]) -> None:
        """Finite loss and gradient; both zero where no token counts."""
        algorithm = self.algorithm()
        rows = [RowCase(1, mask, float(n)) for n, mask in enumerate(masks)]
        case = self._case(algorithm, rows)
        for role in _trained(algorithm):
            got = _step(algorithm, role, case.batch, leaves_of(role, case), budget=3, ranks=2)
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
        alone = torch.tensor([row.group in (5, 9) for row in MIXED])
        assert (advantages[alone] == 0).all()
        assert (advantages[~alone] != 0).any()

    def test_learns_the_toy_task(self) -> None:
        """From a probability of 0.2 for the right token to more than 0.8."""
        task = ToyTask(self.algorithm())
        assert task.success() == pytest.approx(0.2)
        task.run(self.toy_steps)
        assert task.success() > 0.8

    def test_state_survives_a_snapshot(self) -> None:
        """A fresh copy with the state of a used one gives the same scalars and state."""
        algorithm = self.algorithm()
        ToyTask(algorithm).run(2)
        copy = self.algorithm()
        copy.load_state_dict(algorithm.state_dict())
        assert dict(copy.scalars()) == dict(algorithm.scalars())
        assert copy.state_dict() == algorithm.state_dict()

    # --- inside -------------------------------------------------------------------------------

    def _case(self, algorithm: Algorithm, rows: Sequence[RowCase] = MIXED, **more: Any) -> Case:
        return make_case(algorithm, _own_episodes(rows), extra=self.extra_columns, **more)

    def _cases(self) -> Iterator[tuple[Algorithm, RoleSpec, Case]]:
        algorithm = self.algorithm()
        for role in _trained(algorithm):
            yield algorithm, role, self._case(algorithm)


def _trained(algorithm: Algorithm) -> list[RoleSpec]:
    return [role for role in algorithm.roles() if role.trained]


def _own_episodes(rows: Sequence[RowCase]) -> list[RowCase]:
    """Episode ids that stay with their rows when these are reordered."""
    return [
        row if row.episode is not None else dataclasses.replace(row, episode=number)
        for number, row in enumerate(rows)
    ]


def _step(
    algorithm: Algorithm,
    role: RoleSpec,
    batch: Batch,
    leaves: Mapping[str, Tensor],
    *,
    budget: int = 1000,
    ranks: int = 1,
    dirty: bool = False,
) -> _Result:
    """One optimiser step over the whole batch, split as asked."""
    held = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}

    def outputs(rows: Rows, micro: TensorDict) -> Output:
        index, width = torch.from_numpy(rows), micro["loss_mask"].shape[1]
        taken = {name: leaf[index] for name, leaf in held.items()}
        return Output(**{n: v if v.dim() == 1 else v[:, :width] for n, v in taken.items()})

    loss, figures = simulate_step(
        algorithm,
        role.name,
        batch,
        _plan(algorithm, batch, budget, ranks),
        outputs,
        fixed_length=FIXED_LENGTH,
        dirty=dirty,
    )
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    zero = {name: torch.zeros_like(leaf) for name, leaf in held.items()}
    gradients = {n: zero[n] if leaf.grad is None else leaf.grad for n, leaf in held.items()}
    return _Result(loss.item(), figures, gradients)


def _plan(algorithm: Algorithm, batch: Batch, budget: int, ranks: int) -> MiniBatchPlan:
    plan = plan_update(
        batch.lengths("prompt_ids") + batch.lengths("response_ids"),
        np.asarray(batch["group_ids"]),
        epochs=1,
        minibatch_prompts=0,
        budget=budget,
        ranks=ranks,
        atom_ids=algorithm.atoms(batch),
    )
    return plan.minibatches[0]


def _same(got: _Result, wanted: _Result, rel: float = 1e-9) -> None:
    assert got.loss == pytest.approx(wanted.loss, rel=rel, abs=rel)
    assert got.figures == pytest.approx(wanted.figures, rel=rel, abs=rel)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(got.gradients[name], gradient, rtol=rel, atol=rel)
