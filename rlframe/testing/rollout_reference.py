"""What a rollout engine must agree with: a plain forward pass of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.requests import Completion, Sampling

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["END", "RolloutReference", "truncated", "until_end"]

END = 2
"""The end token of ``tiny_model``."""


def until_end(tokens: Sequence[int]) -> list[int]:
    """Up to the first end token, with it."""
    tokens = list(tokens)
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


class RolloutReference:
    """The model in ``path``; its parameters are what an engine under test loads."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(path).eval()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters by canonical name, each once."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def change(self, seed: int) -> None:
        """Add noise to every parameter in place, the embedding not least."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)

    def logits(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Float64 logits (T, V) from which each of ``token_ids`` (T,) is drawn."""
        import torch

        with torch.no_grad():
            ids = torch.tensor([[*prompt_ids, *token_ids]])
            whole: Tensor = self.model(input_ids=ids).logits[0]
        return whole[len(prompt_ids) - 1 : -1].double()

    def greedy(self, prompt_ids: Sequence[int], count: int) -> list[int]:
        """The most probable continuation of ``count`` tokens."""
        drawn: list[int] = []
        for _ in range(count):
            drawn.append(int(self.logits(prompt_ids, [*drawn, 0])[-1].argmax()))
        return drawn

    def logprobs(
        self, prompt_ids: Sequence[int], completion: Completion, sampling: Sampling
    ) -> Tensor:
        """Nats (T,) of a completion under the distribution that ``sampling`` asks for."""
        import torch

        ids = torch.tensor(completion.token_ids)
        logits = self.logits(prompt_ids, completion.token_ids)
        ends = [self.model.config.eos_token_id, *sampling.stop_token_ids]
        logits[: sampling.min_new_tokens, ends] = -torch.inf
        rows = truncated(logits, sampling)
        return rows.log_softmax(-1).gather(1, ids[:, None])[:, 0]


def truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (T, V) over the temperature, with what top-k, top-p, min-p drop at -inf."""
    import torch

    if sampling.temperature == 0:
        return logits
    logits = logits / sampling.temperature
    for row in logits:
        if sampling.top_k:
            order = row.argsort(descending=True)
            row[order[sampling.top_k :]] = -torch.inf
        if sampling.top_p < 1:
            mass, order = row.softmax(0).sort(descending=True)
            row[order[mass.cumsum(0) - mass >= sampling.top_p]] = -torch.inf
        if sampling.min_p:
            share = row.softmax(0)
            row[share < sampling.min_p * share.max()] = -torch.inf
    return logits
