"""Drawing tokens: inverse CDF with one uniform a token, from a counter-based stream a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlframe.requests import Sampling
from rlframe_plugins.rollouts.torch.decoder import BLOCK

__all__ = ["Draw", "sample", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform (B,) in [0, 1): number ``counts`` of each stream ``seeds`` (splitmix64)."""
    x = seeds + (counts.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    out: NDArray[np.float64] = (x >> np.uint64(11)) * 2.0**-53
    return out


@dataclass(frozen=True)
class Draw:
    """How a batch of B rows is drawn; a field that no row uses is None. All tensors are (B,)."""

    greedy: Tensor | None
    all_greedy: bool
    inverse_temperature: Tensor | None
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> Draw:
        """Gather the settings of the rows, which change only when rows come or go."""
        greedy = [s.temperature == 0 for s in rows]
        heat = [1.0 if s.temperature == 0 else 1.0 / s.temperature for s in rows]
        # A greedy row is not truncated: its log-probability is the model's.
        ks = [0 if s.temperature == 0 else s.top_k for s in rows]
        ps = [1.0 if s.temperature == 0 else s.top_p for s in rows]
        mins = [0.0 if s.temperature == 0 else s.min_p for s in rows]

        def maybe(values: Sequence[float], neutral: float) -> Tensor | None:
            used = any(v != neutral for v in values)
            return torch.tensor(values, device=device) if used else None

        return cls(
            maybe(greedy, False),
            all(greedy),
            maybe(heat, 1.0),
            maybe(ks, 0),
            maybe(ps, 1.0),
            maybe(mins, 0.0),
        )


def sample(logits_VB: Tensor, draw: Draw, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token a column of float32 logits, whose memory is overwritten.

    V is a multiple of BLOCK (fill with -inf). Returns tokens (B,) int64 and log-probabilities (B,)
    in nats under the distribution that was sampled from; those of a greedy row are the model's own
    at temperature 1. A column without a finite maximum gives a NaN log-probability.
    """
    if draw.inverse_temperature is not None:
        logits_VB.mul_(draw.inverse_temperature)
    if draw.top_k is not None or draw.top_p is not None or draw.min_p is not None:
        _truncate(logits_VB, draw)
    best_B = None if draw.greedy is None else logits_VB.argmax(0)
    weights_VB = logits_VB.sub_(logits_VB.amax(0)).exp_()
    blocks_NB = weights_VB.view(-1, BLOCK, weights_VB.shape[1]).sum(1)
    cumulative_NB = blocks_NB.double().cumsum(0)
    total_B = cumulative_NB[-1]
    if draw.all_greedy and best_B is not None:
        token_B = best_B
    else:
        token_B = _invert(weights_VB, cumulative_NB, uniform_B.to(total_B.device))
        if best_B is not None and draw.greedy is not None:
            token_B = torch.where(draw.greedy, best_B, token_B)
    chosen_B = weights_VB.gather(0, token_B[None])[0].double()
    return token_B, (chosen_B / total_B).log_().float()


def _invert(weights_VB: Tensor, cumulative_NB: Tensor, uniform_B: Tensor) -> Tensor:
    """First index whose cumulative weight exceeds ``uniform * total``; its weight is positive."""
    total_B = cumulative_NB[-1]
    zero = torch.zeros_like(total_B)
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, zero))
    block_B = (cumulative_NB <= target_B).sum(0).clamp_(max=cumulative_NB.shape[0] - 1)
    before_B = cumulative_NB.gather(0, (block_B - 1).clamp_(min=0)[None])[0]
    rest_B = target_B - torch.where(block_B > 0, before_B, zero)
    index_KB = block_B * BLOCK + torch.arange(BLOCK, device=block_B.device)[:, None]
    inside_KB = weights_VB.gather(0, index_KB).double().cumsum(0)
    rest_B = torch.minimum(rest_B, torch.nextafter(inside_KB[-1], zero))
    within_B = (inside_KB <= rest_B).sum(0).clamp_(max=BLOCK - 1)
    return block_B * BLOCK + within_B


def _truncate(logits_VB: Tensor, draw: Draw) -> None:
    """Set to -inf what top-k, then top-p, then min-p drop; ties with the last kept one stay."""
    if draw.top_k is not None:
        widest = min(int(draw.top_k.max()), logits_VB.shape[0])
        top_BK = logits_VB.t().topk(widest, dim=1).values
        index_B1 = (draw.top_k - 1).clamp(0, widest - 1)[:, None]
        bound_B = top_BK.gather(1, index_B1)[:, 0]
        bound_B = torch.where(draw.top_k > 0, bound_B, -torch.inf)
        logits_VB.masked_fill_(logits_VB < bound_B, -torch.inf)
    if draw.top_p is not None:
        sorted_BV = logits_VB.t().sort(dim=1, descending=True).values
        mass_BV = sorted_BV.softmax(1)
        kept_B1 = (mass_BV.cumsum(1) - mass_BV < draw.top_p[:, None]).sum(1, keepdim=True)
        bound_B = sorted_BV.gather(1, (kept_B1 - 1).clamp_(min=0))[:, 0]
        bound_B = torch.where(draw.top_p < 1, bound_B, -torch.inf)
        logits_VB.masked_fill_(logits_VB < bound_B, -torch.inf)
    if draw.min_p is not None:
        bound_B = logits_VB.amax(0) + draw.min_p.log()
        logits_VB.masked_fill_(logits_VB < bound_B, -torch.inf)
