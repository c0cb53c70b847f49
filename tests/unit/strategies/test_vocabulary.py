"""Log-probabilities and entropy over parts of a vocabulary equal those over all of it."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from rlframe.interfaces.strategy import RankInfo
from rlframe.testing.dist import join, run_ranks
from rlframe_strategies import head
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
            leaves[0], (leaves[1], mine), labels, logits, Vocabulary(peers, low), entropy=entropy
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
    vocabulary = Vocabulary(Counted(dist.group.WORLD, 2, rank.rank), low)
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
