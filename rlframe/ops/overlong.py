"""What a response that nears the length limit loses; lengths are sampled tokens, never a span."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["overlong_penalty"]


def overlong_penalty(lengths: Tensor, limit: Tensor | float, buffer: Tensor | float) -> Tensor:
    """DAPO's soft punishment (2503.14476, eq. 13): (B,) float32 from 0 to -1.

    ``lengths`` are the sampled tokens of one answer, which is what ``limit`` bounds. 0 up to
    ``limit - buffer`` tokens, then linear to -1 at ``limit``, and -1 beyond. A ``buffer`` of 0
    gives -1 beyond the limit alone.
    """
    over = (lengths - (limit - buffer)).double()
    width = torch.as_tensor(buffer, dtype=torch.float64)
    share = torch.where(width > 0, over / width.clamp(min=1e-12), (over > 0).double())
    return -share.clamp(0.0, 1.0).float()
