"""Generalised advantage estimation (1506.02438) over responses in which tools may speak.

Rows without holes under one lambda take a product with a matrix of powers for each tile of tokens.
Else the recursion runs in float64 over the time axis, all rows at once, in tiles that are
transposed so that a step touches contiguous numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.ops.masked import masked_var

__all__ = ["explained_variance", "gae", "outcome_rewards", "suffix_sums"]

_TILE = 64
"""Tokens that are transposed at a time."""

Numbers = NDArray[np.float64]


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float | Tensor = 0.95
) -> tuple[Tensor, Tensor]:
    """Advantages and returns of the tokens where ``mask`` is True, 0 elsewhere: (B, R), (B, R).

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}``,
    ``returns = A + V``, where t + 1 is the next True slot of the row and both are 0 after the last:
    masked slots are skipped, their rewards and values (NaN too) are never read.

    Shapes: ``rewards``, ``values`` (B, R) float, ``mask`` (B, R) bool, ``lam`` a number or (B,),
    one for each row. Sums over many tokens are carried in float64; dtype and device of ``values``
    are kept.
    """
    if isinstance(lam, float | int) and not _has_holes(mask):
        return _by_blocks(rewards, values, mask, gamma, gamma * lam)
    inside = mask.cpu().numpy()
    r, v = (x.detach().cpu().numpy() for x in (rewards, values))
    shrink = np.broadcast_to(gamma * np.asarray(torch.as_tensor(lam).double()), inside.shape[:1])
    advantages, returns = np.zeros(v.shape, v.dtype), np.zeros(v.shape, v.dtype)
    after, carry = np.zeros(len(v)), np.zeros(len(v))
    step = _through_holes if _has_holes(mask) else _without_holes
    for start in range((v.shape[1] - 1) // _TILE * _TILE, -1, -_TILE):
        part = slice(start, start + _TILE)
        chosen = inside[:, part]
        v_tile = np.where(chosen, v[:, part], 0).T.astype(np.float64, order="C")
        a_tile = np.where(chosen, r[:, part], 0).T.astype(np.float64, order="C") - v_tile
        carry, after = step(a_tile, v_tile, chosen.T, carry, after, gamma, shrink)
        advantages[:, part] = np.where(chosen, a_tile.T, 0)
        returns[:, part] = np.where(chosen, (a_tile + v_tile).T, 0)
    where = values.device
    return torch.from_numpy(advantages).to(where), torch.from_numpy(returns).to(where)


def _has_holes(mask: Tensor) -> bool:
    """Whether a row has a False slot between True ones: more rising edges than rows."""
    edges = (mask[:, 1:] & ~mask[:, :-1]).count_nonzero() + mask[:, :1].count_nonzero()
    return bool(edges > mask.any(1).count_nonzero())


def _by_blocks(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, decay: float
) -> tuple[Tensor, Tensor]:
    """:func:`gae` of rows without holes under one lambda."""
    v = torch.where(mask, values, 0.0)
    delta = torch.where(mask, rewards, 0.0).to(v.dtype).sub_(v)
    delta[:, :-1].add_(v[:, 1:], alpha=gamma)
    advantages = suffix_sums(delta, decay).masked_fill_(~mask, 0.0)
    return advantages, v.add_(advantages)


def suffix_sums(x: Tensor, decay: float) -> Tensor:
    """``sum over k >= t of decay^(k - t) x_k``: (B, R) -> (B, R), dtype and device kept.

    Blocks of 64 tokens by a matrix of powers, what follows a block in float64.
    """
    rows, width = x.shape
    if not x.numel():
        return x.clone()
    padded = torch.nn.functional.pad(x, (0, -width % _TILE)) if width % _TILE else x
    blocks = padded.reshape(rows, -1, _TILE)
    step = torch.arange(_TILE, dtype=torch.float64, device=x.device)
    ahead = step[:, None] - step
    powers = torch.where(ahead >= 0, decay ** ahead.clamp(min=0), 0.0).to(x.dtype)
    inside = blocks @ powers
    first = inside[..., 0].double().T.contiguous()
    later = torch.zeros_like(first)
    for k in range(len(first) - 2, -1, -1):
        later[k] = first[k + 1] + decay**_TILE * later[k + 1]
    reach = (decay ** (_TILE - step)).to(x.dtype)
    inside.addcmul_(later.T.to(x.dtype)[..., None], reach)
    return inside.reshape(rows, -1)[:, :width]


def _without_holes(
    a_tile: Numbers,
    v_tile: Numbers,
    chosen: NDArray[np.bool_],
    carry: Numbers,
    after: Numbers,
    gamma: float,
    shrink: Numbers,
) -> tuple[Numbers, Numbers]:
    """Turn ``r - V`` of a tile (T, B) into advantages; returns what its left neighbour needs.

    Zeros stand outside the mask: after the last token they are what the recursion starts from,
    and what it makes of those before the first token is nobody's.
    """
    del chosen
    a_tile[:-1] += gamma * v_tile[1:]
    a_tile[-1] += gamma * after
    scratch = np.empty_like(carry)
    for now in a_tile[::-1]:
        np.multiply(carry, shrink, out=scratch)
        now += scratch
        carry = now
    return carry, v_tile[0]


def _through_holes(
    a_tile: Numbers,
    v_tile: Numbers,
    chosen: NDArray[np.bool_],
    carry: Numbers,
    after: Numbers,
    gamma: float,
    shrink: Numbers,
) -> tuple[Numbers, Numbers]:
    """The same where advantage and value are carried over False slots."""
    carry, after, scratch = carry.copy(), after.copy(), np.empty_like(carry)
    rows = zip(a_tile[::-1], v_tile[::-1], np.ascontiguousarray(chosen)[::-1], strict=True)
    for now, value, inside in rows:
        np.multiply(after, gamma, out=scratch)
        now += scratch
        np.multiply(carry, shrink, out=scratch)
        now += scratch
        np.copyto(carry, now, where=inside)
        np.copyto(after, value, where=inside)
    return carry, after


def outcome_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """The outcome at the last True slot of each row, 0 elsewhere: (B,), (B, R) -> (B, R) float.

    A row without a True slot has no place for it and is all 0.
    """
    count = mask.cumsum(1)
    last = mask & (count == count[:, -1:])
    return torch.where(last, rewards[:, None], 0.0)


def explained_variance(
    returns: Tensor, values: Tensor, mask: Tensor, total: Callable[..., Any] | None = None
) -> Tensor:
    """``1 - Var(returns - values) / Var(returns)`` over the True slots: () float64.

    1 for a perfect critic, 0 for one no better than a constant, also where all returns are equal.
    ``total`` as in :func:`rlframe.ops.masked_var`: ``Batch.sum`` on data-parallel ranks.
    """
    more = () if total is None else (total,)
    spread = masked_var(returns.double(), mask, *more)
    left = masked_var(returns.double() - values.double(), mask, *more)
    return torch.where(spread > 0, 1 - left / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0)
