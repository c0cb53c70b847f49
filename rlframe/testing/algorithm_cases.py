"""Batches that a method must survive: uneven groups, tools' tokens, empty and looked-at rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlframe.algorithm import Algorithm, RoleSpec
from rlframe.batching.batch import Batch
from rlframe.batching.packed import Packed
from rlframe.learning.advantages import checked_columns

__all__ = ["MIXED", "Case", "RowCase", "leaves_of", "make_case"]


@dataclass(frozen=True)
class RowCase:
    """One row: its group, its response mask as a string of 1 and 0, its reward."""

    group: int
    mask: str
    reward: float
    train: bool = True
    episode: int | None = None
    """Rows of one episode share it; None: an episode of its own."""


MIXED = (
    RowCase(7, "111", 1.0),
    RowCase(3, "1", 0.0),
    RowCase(7, "110011", 0.0),
    RowCase(3, "11111", 0.5),
    RowCase(7, "1", 0.25),
    RowCase(9, "1111", 1.0),
    RowCase(3, "", 1.0),
    RowCase(7, "0000", 0.0),
    RowCase(3, "1011", 1.0, episode=50),
    RowCase(3, "01", 1.0, episode=50),
    RowCase(7, "111", 0.75, train=False),
    RowCase(5, "11", 0.35),
    RowCase(5, "101", 0.35),
    RowCase(5, "1", 0.35),
)
"""Groups of five, five, one and three (equal rewards), not side by side."""

Extra = Callable[[Sequence[RowCase]], Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A batch ready for the update, the same before its advantages, and the rows behind it."""

    rows: Sequence[RowCase]
    batch: Batch
    scored: Batch


def make_case(
    algorithm: Algorithm,
    rows: Sequence[RowCase] = MIXED,
    *,
    seed: int = 0,
    extra: Extra | None = None,
    masked_value: float = 0.0,
    given: Mapping[str, Any] | None = None,
) -> Case:
    """A batch as it is before ``update``: collected, scored by every role, with advantages.

    Role outputs are random; ``masked_value`` stands in their slots that the policy did not sample.
    ``given`` columns replace role outputs and what was collected, ``extra`` makes the columns that
    only the method knows.
    """
    collected = _collected(algorithm, rows, seed)
    collected |= {name: column for name, column in (given or {}).items() if name in collected}
    batch = Batch.from_columns(collected, schema=algorithm.schema())
    batch.scalars = dict(algorithm.scalars())
    if extra is not None:
        batch = batch.add(extra(rows))
    mask = batch.packed("response_mask").values
    for number, (role, out, name) in enumerate(_outputs(algorithm)):
        if given is not None and name in given:
            batch = batch.add({name: given[name]})
            continue
        rng = np.random.default_rng((seed, number))
        if out == "scores":
            batch = batch.add({name: rng.normal(size=len(rows)).astype(np.float32)})
            continue
        values = rng.normal(size=len(mask)).astype(np.float32)
        if role.model not in ("value", "score"):
            values = -np.abs(values)
        values[~mask] = masked_value
        batch = batch.add({name: Packed(values, batch.lengths("response_ids"))})
    return Case(rows, batch.add(checked_columns(algorithm, batch)), batch)


def leaves_of(role: RoleSpec, case: Case, seed: int = 1) -> dict[str, Tensor]:
    """Float64 leaves in place of a forward pass of ``role``: (B, R), ``scores`` (B,)."""
    width = int(case.batch.lengths("response_ids").max(initial=0))
    generator = torch.Generator().manual_seed(seed)
    leaves = {}
    for name in role.computes:
        shape = (len(case.batch),) if name == "scores" else (len(case.batch), width)
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        leaves[name] = -values.abs() if name == "logprobs" else values
    return leaves


def _outputs(algorithm: Algorithm) -> list[tuple[RoleSpec, str, str]]:
    return [(role, out, n) for role in algorithm.roles() for out, n in role.outputs.items()]


def _collected(algorithm: Algorithm, rows: Sequence[RowCase], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    masks = [[letter == "1" for letter in row.mask] for row in rows]
    used = [len(mask) for mask in masks]
    columns: dict[str, Any] = {
        "prompt_ids": [[row.group] * (1 + row.group % 3) for row in rows],
        "response_ids": Packed.from_rows([rng.integers(1, 9, n) for n in used], "int64"),
        "response_mask": Packed.from_rows(masks, "bool"),
        "rollout_logprobs": Packed.from_rows([-rng.random(n) for n in used], "float32"),
        "policy_version": Packed.from_rows([np.zeros(n) for n in used], "int32"),
        "turn_ids": Packed.from_rows([np.zeros(n) for n in used], "int32"),
        "response_tokens": np.array([sum(mask) for mask in masks], np.int64),
        "turn_tokens": np.array([sum(mask) for mask in masks], np.int64),
        "response_limit": np.full(len(rows), 8, np.int64),
        "group_ids": np.array([row.group for row in rows], np.int64),
        "episode_ids": np.array(
            [n if row.episode is None else row.episode for n, row in enumerate(rows)], np.int64
        )
        + 100,
        "train": np.array([row.train for row in rows], bool),
        "finish_reason": ["stop"] * len(rows),
    }
    if not algorithm.offline:
        rewards = np.array([row.reward for row in rows], np.float32)
        columns["rewards"] = rewards
        columns["reward_parts"] = np.stack([rewards, rewards**2], 1)
        token_rewards = [0.1 * rng.normal(size=n) for n in used]
        columns["token_rewards"] = Packed.from_rows(token_rewards, "float32")
    return columns
