"""Log-probabilities and entropy over parts of a vocabulary equal those over all of it."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from rlframe.algorithm import Divergence
from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe_strategies import head
from rlframe_strategies.divergence import Head, token_divergence
from rlframe_strategies.head import LogitMap, token_logprobs
from rlframe_strategies.peers import Peers
from rlframe_strategies.vocabulary import Vocabulary, vocabulary_logprobs

pytestmark = pytest.mark.dist

N, H, V = 11, 6, 13


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden, weight, bias = (torch.randn(shape, generator=g) for shape in ((N, H), (V, H), (V,)))
    return hidden * 3, weight, bias, torch.randint(0, V, (N,), generator=g)


def loss(found: tuple[Tensor, Tensor | None]) -> Tensor:
    up = torch.randn(2, N, generator=torch.Generator().manual_seed(1))
    total = (found[0] * up[0]).sum()
    return total if found[1] is None else total + (found[1] * up[1]).sum()


def gradients(*tensors: Tensor | None) -> list[Tensor]:
    return [t.grad for t in tensors if t is not None and t.grad is not None]


def part(rank: RankInfo, logits: LogitMap, bias: bool, entropy: bool) -> list[Tensor]:
    """This rank's results and gradients: of the hidden states, of its rows of the head."""
    join(rank)
    hidden, weight, biases, labels = inputs()
    size = -(-V // rank.world)
    low = rank.rank * size
    leaves = [t.requires_grad_() for t in (hidden, weight[low : low + size].clone())]
    mine = biases[low : low + size].clone().requires_grad_() if bias else None
    peers = Peers(dist.group.WORLD, rank.world, rank.rank)
    with mock.patch.object(head, "_MIN_CHUNK", 1), mock.patch.object(head, "_MAX_CHUNK", 4):
        found = vocabulary_logprobs(
            leaves[0], (leaves[1], mine), labels, logits, Vocabulary(peers, low, V), entropy=entropy
        )
        loss(found).backward()
    results = [t.detach() for t in found if t is not None]
    dist.barrier()
    return [*results, *gradients(*leaves, mine)]


@pytest.mark.parametrize(
    ("logits", "bias", "entropy"),
    [
        (LogitMap(), True, True),
        (LogitMap(temperature=0.6), False, False),
        (LogitMap(scale=3.0, softcap=1.5, temperature=0.7), True, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("world", [2, 4])
def test_values_and_gradients_are_those_of_the_whole_head(
    logits: LogitMap, bias: bool, entropy: bool, world: int
) -> None:
    hidden, weight, biases, labels = (t.requires_grad_(t.is_floating_point()) for t in inputs())
    whole = token_logprobs(
        hidden, weight, biases if bias else None, labels, logits, entropy=entropy
    )
    loss(whole).backward()
    results = [t.detach() for t in whole if t is not None]
    wanted = [*results, *gradients(hidden, weight, biases if bias else None)]
    seen = run_ranks(part, world, logits, bias, entropy)
    shared = len(results) + 1
    for rank in seen:
        torch.testing.assert_close(rank[:shared], wanted[:shared], rtol=1e-5, atol=1e-5)
    for index in range(shared, len(wanted)):
        joined = torch.cat([rank[index] for rank in seen])
        torch.testing.assert_close(joined, wanted[index], rtol=1e-5, atol=1e-5)


FORMS = [
    Divergence("teacher", kind, top_k, 0.3)
    for kind in ("reverse-kl", "forward-kl", "jsd")
    for top_k in (0, 5)
]


def divergence(
    leaves: Sequence[Tensor], heads: Sequence[Head], form: Divergence, cut: Vocabulary | None
) -> Tensor:
    found = token_divergence((leaves[0], heads[0]), (leaves[1], heads[1]), form, cut)
    up = torch.randn(N, generator=torch.Generator().manual_seed(1))
    (found * up).sum().backward()
    return found.detach()


def models() -> tuple[list[Tensor], list[Tensor]]:
    """Hidden states of a student and a teacher, and their heads."""
    g = torch.Generator().manual_seed(2)
    states = [torch.randn(N, width, generator=g) for width in (H, 4)]
    return states, [torch.randn(V, width, generator=g) for width in (H, 4)]


def diverge(rank: RankInfo, form: Divergence) -> list[Tensor]:
    join(rank)
    states, weights = models()
    size = -(-V // rank.world)
    low = rank.rank * size
    mine = [weight[low : low + size].clone() for weight in weights]
    leaves = [states[0].requires_grad_(), states[1]]
    heads = [Head(weight, None, LogitMap(temperature=0.7)) for weight in mine]
    mine[0].requires_grad_()
    cut = Vocabulary(Peers(dist.group.WORLD, rank.world, rank.rank), low, V)
    with mock.patch.object(head, "_MIN_CHUNK", 1), mock.patch.object(head, "_MAX_CHUNK", 4):
        found = divergence(leaves, heads, form, cut)
    dist.barrier()
    return [found, *gradients(leaves[0], mine[0])]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_divergences_and_their_gradients_are_those_of_whole_heads(form: Divergence) -> None:
    states, weights = models()
    leaves = [states[0].requires_grad_(), states[1]]
    weights[0].requires_grad_()
    heads = [Head(weight, None, LogitMap(temperature=0.7)) for weight in weights]
    wanted = [divergence(leaves, heads, form, None), *gradients(leaves[0], weights[0])]
    seen = run_ranks(diverge, 4, form)
    for rank in seen:
        torch.testing.assert_close(rank[:2], wanted[:2], rtol=1e-5, atol=1e-5)
    joined = torch.cat([rank[2] for rank in seen])
    torch.testing.assert_close(joined, wanted[2], rtol=1e-5, atol=1e-5)


def traffic(rank: RankInfo) -> tuple[int, int]:
    """Most elements of one collective, forward and backward."""
    join(rank)
    hidden, weight, _, labels = inputs()
    sent: list[int] = []

    class Counted(Peers):
        def gather(self, values: Tensor) -> Tensor:
            sent.append(values.numel())
            return super().gather(values)

        def all_reduce(self, values: Tensor) -> Tensor:
            sent.append(values.numel())
            return super().all_reduce(values)

    low = 7 * rank.rank
    mine = weight[low : low + 7].clone().requires_grad_()
    vocabulary = Vocabulary(Counted(dist.group.WORLD, 2, rank.rank), low, V)
    states = hidden.requires_grad_()
    loss(vocabulary_logprobs(states, (mine, None), labels, LogitMap(), vocabulary, entropy=True))
    forward = max(sent)
    sent.clear()
    found = vocabulary_logprobs(states, (mine, None), labels, LogitMap(), vocabulary, entropy=True)
    sent.clear()
    loss(found).backward()
    dist.barrier()
    return forward, max(sent)


def test_neither_logits_nor_the_head_are_exchanged() -> None:
    assert run_ranks(traffic, 2) == [(4 * N, N * H)] * 2
