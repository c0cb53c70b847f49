"""A task that any method must learn in seconds: for each of four prompts, say two right tokens.

The policy is a table of logits, a critic a table of values, a score the sum of a table's entries at
the tokens; everything else is the core's own path.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlframe.algorithm import Algorithm, Output, RoleSpec
from rlframe.batching.assemble import batch_of
from rlframe.batching.batch import Batch
from rlframe.batching.plan import plan_batch
from rlframe.collecting.entry import GroupSummary
from rlframe.learning.advantages import checked_columns
from rlframe.recording.metrics import ROLE_PREFIX, batch_metrics
from rlframe.requests import Episode, Group, Request, Row, Segment
from rlframe.testing.simulated_update import Rows, simulate_step

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["ToyTask"]

_PROMPTS, _LENGTH, _WORDS = 4, 2, "abcde"
_SHAPES = {"value": (_PROMPTS, _LENGTH)}


class ToyTask:
    """Learns by ``algorithm`` for as many steps as are asked for.

    ``success()`` is the probability of a right token, 0.2 before the first step.
    """

    def __init__(self, algorithm: Algorithm, seed: int = 0, lr: float = 0.2) -> None:
        self.algorithm = algorithm
        self._roles = algorithm.roles()
        self._random = torch.Generator().manual_seed(seed)
        self._targets = torch.randint(
            len(_WORDS), (_PROMPTS, _LENGTH), generator=self._random
        ).tolist()
        self._tables = {role.name: _table(role) for role in self._roles}
        self._optimisers = {
            role.name: torch.optim.Adam([self._tables[role.name]], lr)
            for role in self._roles
            if role.trained
        }
        self._steps = 0

    def success(self) -> float:
        """Mean probability of the right token over prompts and positions."""
        probabilities = self._tables["policy"].detach().softmax(-1)
        wanted = torch.tensor(self._targets)[..., None]
        return float(probabilities.gather(-1, wanted).mean())

    def run(self, steps: int) -> None:
        """Collect and learn ``steps`` times."""
        for _ in range(steps):
            groups = [self._group(number) for number in range(_PROMPTS)]
            self._steps += 1
            accepted = [group for group in groups if self.algorithm.accept(group)]
            if accepted:
                batch = batch_of(accepted, schema=self.algorithm.schema())
                summaries = [GroupSummary.of(group) for group in accepted]
                self._learn(batch, batch_metrics(batch, summaries))

    # --- collecting ---------------------------------------------------------------------------

    def _group(self, prompt: int) -> Group:
        answer = "".join(_WORDS[token] for token in self._targets[prompt])
        wrong = "".join(_WORDS[(token + 1) % len(_WORDS)] for token in self._targets[prompt])
        columns: dict[str, Any] = {"prompt": str(prompt), "response": answer, "answer": answer}
        columns |= {"chosen": answer, "rejected": wrong}
        columns |= {"chosen_safe": True, "rejected_safe": False}
        row = Row((prompt,), columns, group_id=self._steps * _PROMPTS + prompt, source="toy")
        if self.algorithm.offline:
            episodes = [
                self._episode(
                    row,
                    n,
                    row.request(),
                    [_WORDS.index(c) for c in example.response],
                    example.columns,
                )
                for n, example in enumerate(self.algorithm.examples(row))
            ]
        else:
            episodes = [
                self._episode(row, n, request, self._sample(prompt, request))
                for n, request in enumerate(self.algorithm.requests(row))
            ]
        return Group(row, episodes)

    def _sample(self, prompt: int, request: Request) -> list[int]:
        logits = self._tables["policy"][prompt].detach()
        if request.sampling.temperature == 0:
            return [int(token) for token in logits.argmax(-1)]
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=self._random)
        return [int(token) for token in drawn[:, 0]]

    def _episode(
        self,
        row: Row,
        number: int,
        request: Request,
        tokens: list[int],
        columns: Mapping[str, Any] | None = None,
    ) -> Episode:
        stamped = dataclasses.replace(
            request, group_id=row.group_id, episode_id=row.group_id * 1000 + number
        )
        logprobs = self._tables["policy"][row.prompt_ids[0]].detach().log_softmax(-1)
        right = [a == b for a, b in zip(tokens, self._targets[row.prompt_ids[0]], strict=True)]
        segment = Segment(
            prompt_ids=list(row.prompt_ids),
            response_ids=tokens,
            response_mask=[True] * _LENGTH,
            logprobs=[float(logprobs[t, token]) for t, token in enumerate(tokens)],
            versions=[self._steps] * _LENGTH,
            turn_ids=[0] * _LENGTH,
        )
        reward = None if self.algorithm.offline else sum(right) / _LENGTH
        parts = {} if reward is None else {"exact": reward, "whole": float(all(right))}
        more = dict(columns or {})
        return Episode(stamped, [segment], "stop", "", reward, parts, more)

    # --- learning -----------------------------------------------------------------------------

    def _learn(self, batch: Batch, metrics: dict[str, float]) -> None:
        for role in self.algorithm.scorers():
            with torch.no_grad():
                out = self._outputs(role, batch.to_tensordict(), tuple(role.outputs))
            batch = batch.add({column: out.get(n) for n, column in role.outputs.items()})
        self.algorithm.scored(batch)
        batch.scalars = dict(self.algorithm.scalars())
        batch = batch.add(checked_columns(self.algorithm, batch))
        for role in self._roles:
            if role.trained and self._steps >= role.from_step:
                metrics |= self._update(role, batch)
        self.algorithm.after_step(metrics)

    def _update(self, role: RoleSpec, batch: Batch) -> dict[str, float]:
        config = self.algorithm.config
        prompts = role.minibatch_prompts
        plan = plan_batch(
            batch,
            epochs=config.epochs if role.epochs is None else role.epochs,
            minibatch_prompts=config.minibatch_prompts if prompts is None else prompts,
            budget=1000,
            atom_ids=self.algorithm.atoms(batch),
            seed=self._steps,
        )

        def outputs(rows: Rows, micro: TensorDict) -> Output:
            del rows
            return self._outputs(role, micro, role.computes)

        figures: dict[str, float] = {}
        for step in plan.minibatches:
            loss, figures = simulate_step(
                self.algorithm, role.name, batch, step, outputs, fixed_length=_LENGTH
            )
            self._optimisers[role.name].zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimisers[role.name].step()
        prefix = ROLE_PREFIX.get(role.name, role.name)
        return {f"{prefix}/{name}": value for name, value in figures.items()}

    def _outputs(self, role: RoleSpec, micro: TensorDict, computes: tuple[str, ...]) -> Output:
        rows = self._tables[role.name][micro["prompt_ids"][:, -1]]
        if role.model in _SHAPES:
            return Output(**{name: rows for name in computes})
        logprobs, tokens = rows.log_softmax(-1), micro["response_ids"][..., None]
        known: dict[str, Tensor] = {
            "logprobs": logprobs.gather(-1, tokens)[..., 0],
            "entropy": -(logprobs.exp() * logprobs).sum(-1),
            "scores": rows.gather(-1, tokens)[..., 0].sum(1),
        }
        return Output(**{name: known[name] for name in computes})


def _table(role: RoleSpec) -> Tensor:
    shape = _SHAPES.get(role.model, (_PROMPTS, _LENGTH, len(_WORDS)))
    return torch.zeros(shape, requires_grad=role.trained)
