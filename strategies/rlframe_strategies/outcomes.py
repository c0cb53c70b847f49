"""Sums and choices over a vocabulary that is here as a whole, or of which each rank has a part.

**c** positions of a chunk, **W** tokens of this rank's part (all V of them without others), **k**
tokens that are chosen by their number in the whole vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlframe_strategies.vocabulary import Vocabulary

__all__ = ["Outcomes"]


@dataclass(frozen=True)
class Outcomes:
    """Every method is collective where ``vocabulary`` has other ranks; all of them get the same."""

    vocabulary: Vocabulary | None = None

    def size(self, here: int) -> int:
        """Tokens of the whole vocabulary, ``here`` of which are this rank's."""
        return here if self.vocabulary is None else self.vocabulary.size

    def widest(self, here: int) -> int:
        """Tokens of the largest part; chunks are counted by it, as all ranks make the same."""
        if self.vocabulary is None:
            return here
        return -(-self.vocabulary.size // self.vocabulary.peers.size)

    def share(self, hidden: Tensor) -> Tensor:
        """Hidden states whose gradient is summed over the parts."""
        return hidden if self.vocabulary is None else self.vocabulary.peers.copy(hidden)

    def normalise(self, logits: Tensor) -> Tensor:
        """(c, W) log-probabilities of logits."""
        if self.vocabulary is None:
            return logits.log_softmax(1)
        return logits - self._logsumexp(logits)

    def sum(self, values: Tensor) -> Tensor:
        """(c, W) to (c,)."""
        total = values.sum(1)
        return total if self.vocabulary is None else self.vocabulary.peers.all_reduce(total)

    def top(self, logs: Tensor, count: int) -> Tensor:
        """The ``count`` most probable tokens of each position: (c, k)."""
        if self.vocabulary is None:
            return logs.topk(count, dim=1).indices
        few = logs.topk(min(count, logs.shape[1]), dim=1)
        spare = (0, count - few.indices.shape[1])
        values = self._beside(pad(few.values, spare, value=-torch.inf))
        tokens = self._beside(pad(few.indices + self.vocabulary.low, spare))
        return tokens.gather(1, values.topk(count, dim=1).indices)

    def pick(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """What (c, W) says of the tokens (c, k)."""
        rows, here = self._rows(logs, tokens), self._open(logs, 0.0).gather
        if self.vocabulary is None:
            return here(1, rows)
        return self.vocabulary.peers.all_reduce(here(1, rows))

    def rest(self, logs: Tensor, tokens: Tensor) -> Tensor:
        """Log-probability (c, 1) of all tokens but those."""
        others = self._open(logs, -torch.inf).scatter(1, self._rows(logs, tokens), -torch.inf)
        return self._logsumexp(others)

    def put(self, values: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
        """``values`` (c, W) with ``chosen`` (c, k) at the tokens."""
        opened = self._open(values, 0.0).scatter(1, self._rows(values, tokens), chosen)
        return opened[:, : values.shape[1]]

    def _logsumexp(self, logs: Tensor) -> Tensor:
        mine = logs.logsumexp(1, keepdim=True)
        return mine if self.vocabulary is None else self.vocabulary.peers.gather(mine).logsumexp(0)

    def _beside(self, values: Tensor) -> Tensor:
        """(c, k) of every rank, side by side."""
        assert self.vocabulary is not None
        return self.vocabulary.peers.gather(values).transpose(0, 1).flatten(1)

    def _open(self, values: Tensor, fill: float) -> Tensor:
        """One more column, for tokens of other ranks."""
        return values if self.vocabulary is None else pad(values, (0, 1), value=fill)

    def _rows(self, values: Tensor, tokens: Tensor) -> Tensor:
        if self.vocabulary is None:
            return tokens
        rows, inside = self.vocabulary.own(tokens, values.shape[1])
        return rows.masked_fill(~inside, values.shape[1])
