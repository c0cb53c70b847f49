"""What a response that nears the length limit loses; lengths are sampled tokens, never a span."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["episode_lengths", "overlong_penalty"]


def episode_lengths(response_tokens: Tensor, episode_ids: Tensor) -> Tensor:
    """Tokens that the policy sampled in each row's whole episode: (B,), (B,) int64 -> (B,) int64.

    A tool's output is in no length, and rows of one episode share theirs.
    """
    _, episode = torch.unique(episode_ids, return_inverse=True)
    count = int(episode.max()) + 1 if len(episode) else 0
    total = torch.zeros(count, dtype=torch.int64).index_add(0, episode, response_tokens.long())
    return total[episode]


def overlong_penalty(lengths: Tensor, limit: Tensor | float, buffer: Tensor | float) -> Tensor:
    """DAPO's soft punishment (2503.14476, eq. 13): (B,) float32 from 0 to -1.

    0 up to ``limit - buffer`` tokens, then linear to -1 at ``limit``, and -1 beyond. A ``buffer``
    of 0 gives -1 beyond the limit alone.
    """
    over = (lengths - (limit - buffer)).double()
    width = torch.as_tensor(buffer, dtype=torch.float64)
    share = torch.where(width > 0, over / width.clamp(min=1e-12), (over > 0).double())
    return -share.clamp(0.0, 1.0).float()
