"""Llama-shaped forward pass: logical (features, tokens) activations in reused buffers.

``W @ x`` with one column a token is the faster product on a CPU for 12 columns and more; below that
the same logical tensors lie in memory as one row a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from rlframe_plugins.rollouts.torch.arch import Arch, rope_tables
from rlframe_plugins.rollouts.torch.attention import DecodeAttention, PrefillAttention
from rlframe_plugins.rollouts.torch.cache import KVCache
from rlframe_plugins.rollouts.torch.weights import Layer, Linear, Weights

if TYPE_CHECKING:
    from rlframe_plugins.rollouts.torch.team import Team

__all__ = ["BLOCK", "Decoder"]

BLOCK = 64
"""Logits are padded with -inf to a multiple of this many rows, for the sampler's block sums."""

_COLUMNS_FROM = 12

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (heads, dim, T), k and v (kv_heads, dim, T)) -> (heads * dim, T)."""


class Decoder:
    """Prefill and decode over shared weights and a :class:`KVCache`; keeps only scratch memory.

    With a ``team`` the weights are this rank's shards: some heads, some of the MLP's features, and
    rows of embedding and head; ``arch`` counts the rank's own heads, ``vocab`` all tokens. Every
    rank makes the same calls.
    """

    def __init__(self, config: Any, arch: Arch, vocab: int = 0, team: Team | None = None) -> None:
        self._config, self.arch = config, arch
        self._vocab, self._team = vocab, team
        self._weights: Weights | None = None
        self._scratch: dict[str, Tensor] = {}
        self._cos = self._sin = torch.empty(0)

    @property
    def weights(self) -> Weights:
        """What :meth:`use` took."""
        assert self._weights is not None, "no weights"
        return self._weights

    def use(self, weights: Weights | None, version: int = -1) -> None:
        """Compute with these weights from now on; None drops them and the scratch memory.

        ``version`` names them to a team's other ranks, which have their own shards of it.
        """
        old = self._weights
        if weights is None or (old and old.embed.dtype != weights.embed.dtype):
            self._scratch.clear()
            self._cos = self._sin = torch.empty(0)
        self._weights = weights

    def prefill(
        self,
        texts: Sequence[Sequence[int]],
        starts: Sequence[int],
        tables: Sequence[Sequence[int]],
        cache: KVCache,
    ) -> Tensor:
        """Run texts, right-padded to the longest, and keep them in the blocks of their tables.

        Text i begins at position ``starts[i]``, at a block's begin; the cache has what is before.
        Returns the hidden state of each last token, (hidden, texts).
        """
        device = self.weights.embed.device
        lengths = [len(t) for t in texts]
        width, count = max(lengths), len(texts)
        ids = torch.zeros((count, width), dtype=torch.int64)
        for i, text in enumerate(texts):
            ids[i, : lengths[i]] = torch.as_tensor(text)
        first = torch.tensor(starts, device=device)[:, None]
        positions = (first + torch.arange(width, device=device)).view(-1)
        attend = PrefillAttention(self.arch, cache, lengths, starts, tables, device)
        x = self._forward(ids.view(-1).to(device), positions, max(starts) + width, attend)
        last = torch.arange(count) * width + torch.tensor(lengths) - 1
        return x.index_select(1, last.to(device))

    def decode(
        self,
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        tables: NDArray[np.int64],
        cache: KVCache,
        exact: bool = False,
    ) -> Tensor:
        """One token (B,) a row, at its position (B,) in the blocks of its table (B, M).

        Returns hidden states (hidden, B). With ``exact`` these depend on nothing but the row's own
        tokens, as long as B is 1.
        """
        device = self.weights.embed.device
        attend = DecodeAttention(self.arch, cache, positions, tables, exact, device)
        there = [torch.from_numpy(array).to(device) for array in (tokens, positions)]
        return self._forward(there[0], there[1], int(positions.max()) + 1, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits (V, B) of hidden states, in rows 0 to V of a (V up to BLOCK, B) buffer."""
        head = self.weights.head
        vocab, count = head.shape[0], hidden.shape[1]
        normed = self._norm(hidden, self.weights.norm)
        if self._team is not None:
            return self._gathered(normed, self._team)
        padded = -(-vocab // BLOCK) * BLOCK
        out = self._buffer("logits", padded, count, head.dtype)
        torch.mm(head, normed, out=out[:vocab])
        out[vocab:] = -torch.inf
        return out.float()

    # --- inside -------------------------------------------------------------------------------

    def _forward(self, tokens: Tensor, positions: Tensor, width: int, attend: Attend) -> Tensor:
        """Residual stream (hidden, T) after the last block; positions are below ``width``."""
        self._grow_rope(width)
        count, dtype = tokens.shape[0], self.weights.embed.dtype
        x = self._buffer("x", self.arch.hidden, count, dtype)
        self._embed(tokens, x)
        cos = self._buffer("cos", self._cos.shape[1], count, dtype)
        cos.copy_(self._cos[positions].t())
        sin = self._buffer("sin", self._sin.shape[1], count, dtype)
        sin.copy_(self._sin[positions].t())
        for index, layer in enumerate(self.weights.layers):
            self._attention(x, index, layer, cos, sin, attend)
            self._mlp(x, layer)
        return x

    def _attention(
        self, x: Tensor, index: int, layer: Layer, cos: Tensor, sin: Tensor, attend: Attend
    ) -> None:
        arch, count = self.arch, x.shape[1]
        turned = arch.heads + arch.kv_heads
        qkv = self._buffer("qkv", (turned + arch.kv_heads) * arch.head_dim, count, x.dtype)
        _project(layer.qkv, self._norm(x, layer.norm_in), qkv)
        heads = qkv.view(turned + arch.kv_heads, arch.head_dim, count)
        q, k, v = heads[: arch.heads], heads[arch.heads : turned], heads[turned:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q.copy_(_rms(q, arch.eps, 1) * layer.q_norm)
            k.copy_(_rms(k, arch.eps, 1) * layer.k_norm)
        turn = self._buffer("turn", turned * arch.head_dim, count, x.dtype)
        turn = _rotate(heads[:turned], cos, sin, turn.view(turned, arch.head_dim, count))
        self._add(x, layer.o, attend(index, turn[: arch.heads], turn[arch.heads :], v))

    def _mlp(self, x: Tensor, layer: Layer) -> None:
        inner = layer.down.weight.shape[1]
        both = self._buffer("mlp", 2 * inner, x.shape[1], x.dtype)
        _project(layer.gate_up, self._norm(x, layer.norm_mlp), both)
        gate, up = both[:inner], both[inner:]
        self._add(x, layer.down, F.silu(gate, inplace=True).mul_(up))

    def _add(self, x: Tensor, layer: Linear, features: Tensor) -> None:
        """Add a projection to the residual stream; with a team, the sum of all ranks' parts."""
        if self._team is None:
            x.addmm_(layer.weight, features)
        else:
            part = self._buffer("part", layer.out, x.shape[1], x.dtype)
            self._team.sum(_dense(torch.mm(layer.weight, features, out=part)))
            x.add_(part)
        if layer.bias is not None:
            x.add_(layer.bias)

    def _embed(self, tokens: Tensor, x: Tensor) -> None:
        """Embeddings (hidden, T) of tokens (T,); a rank knows those of its rows of the table."""
        table = self.weights.embed
        if self._team is None:
            x.copy_(F.embedding(tokens, table).t())
            return
        own = tokens - self._team.index * self._rows_a_rank(self._team)
        away = (own < 0) | (own >= table.shape[0])
        x.zero_()
        if table.shape[0]:
            x.copy_(F.embedding(own.masked_fill(away, 0), table).t()).masked_fill_(away, 0)
        self._team.sum(_dense(x))

    def _gathered(self, normed: Tensor, team: Team) -> Tensor:
        """The logits of all ranks' rows of the head, on the leader; elsewhere nothing (0, B)."""
        head, count, rows = self.weights.head, normed.shape[1], self._rows_a_rank(team)
        mine = head.new_zeros((rows, count))
        torch.mm(head, normed, out=mine[: head.shape[0]])
        parts = team.gather(mine)
        if parts is None:
            return mine[:0]
        out = head.new_full((-(-self._vocab // BLOCK) * BLOCK, count), -torch.inf)
        out[: self._vocab] = parts.view(-1, count)[: self._vocab]
        return out.float()

    def _rows_a_rank(self, team: Team) -> int:
        """Rows of embedding and head that a rank has; the last ones may have fewer."""
        return -(-self._vocab // team.size)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        out = self._buffer("norm", x.shape[0], x.shape[1], x.dtype)
        if x.dtype == torch.float32:
            scale = (x * x).mean(0).add_(self.arch.eps).rsqrt_()
            return torch.mul(x, scale, out=out).mul_(weight)
        return torch.mul(_rms(x, self.arch.eps, 0), weight, out=out)

    def _buffer(self, name: str, features: int, count: int, dtype: torch.dtype) -> Tensor:
        """Reused (features, count), in the memory order that suits ``count``."""
        flat = self._scratch.get(name)
        size = features * count
        if flat is None or flat.numel() < size:
            flat = torch.empty(size, dtype=dtype, device=self.weights.embed.device)
            self._scratch[name] = flat
        if count >= _COLUMNS_FROM:
            return flat[:size].view(features, count)
        return flat[:size].view(count, features).t()

    def _grow_rope(self, width: int) -> None:
        if self._cos.shape[0] >= width:
            return
        embed = self.weights.embed
        positions = max(256, 2 * width)
        cos, sin = rope_tables(self._config, self.arch, positions, embed.dtype)
        self._cos, self._sin = cos.to(embed.device), sin.to(embed.device)


def _project(parts: tuple[Linear, ...], x: Tensor, out: Tensor) -> None:
    """Each part's product into its rows of ``out``."""
    start = 0
    for part in parts:
        rows = out[start : start + part.out]
        if part.bias is None:
            torch.mm(part.weight, x, out=rows)
        else:
            torch.addmm(part.bias, part.weight, x, out=rows)
        start += part.out


def _dense(x: Tensor) -> Tensor:
    """The memory of a buffer as a contiguous tensor."""
    return x if x.is_contiguous() else x.t()


def _rms(x: Tensor, eps: float, dim: int) -> Tensor:
    """Root-mean-square normalised over ``dim`` in float32, back in x's dtype."""
    wide = x.float()
    return (wide * (wide * wide).mean(dim, keepdim=True).add_(eps).rsqrt_()).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """Rotary embedding of (heads, dim, T) by (dim / 2, T), halves as in transformers."""
    half = cos.shape[0]
    low, high, low_out, high_out = x[:, :half], x[:, half:], out[:, :half], out[:, half:]
    torch.mul(low, cos, out=low_out).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=high_out).addcmul_(low, sin)
    return out
