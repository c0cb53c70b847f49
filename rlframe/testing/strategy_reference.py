"""What a strategy must compute, written plainly: row by row, unpadded, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.algorithm import Output

if TYPE_CHECKING:
    from pathlib import Path

    from tensordict import TensorDict
    from torch import Tensor

__all__ = ["Reference", "Step"]


@dataclass(frozen=True)
class Step:
    """Gradient norm before clipping and the weights afterwards, float64 by canonical name."""

    norm: float
    weights: Mapping[str, Tensor]


class Reference:
    """A float64 causal language model with the head of ``kind``; SGD with clipping.

    ``kind`` "policy": log-probabilities and entropy under ``temperature``; "value": a linear map of
    the hidden state before each response token; "score": of that of a row's last token. New heads
    are zero.
    """

    def __init__(self, path: Path, kind: str = "policy", temperature: float = 1.0) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.kind, self.temperature = kind, temperature
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float64, attn_implementation="eager"
        )
        self.head = torch.nn.Linear(
            self.model.config.hidden_size, 1, bias=kind == "value", dtype=torch.float64
        )
        for parameter in self.head.parameters():
            torch.nn.init.zeros_(parameter)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters by canonical name; a tied one once, under its first name."""
        if self.kind in ("policy", "teacher"):
            return dict(self.model.named_parameters())
        body = {f"model.{n}": p for n, p in self.model.base_model.named_parameters()}
        return {**body, **{f"score.{n}": p for n, p in self.head.named_parameters()}}

    def outputs(self, micro: TensorDict) -> Output:
        """Whole rows (b, R), zeros beyond each row; or (b,) scores."""
        import torch

        rows = [self._row(micro, i) for i in range(len(micro))]
        if self.kind == "score":
            return Output(scores=torch.stack([row["scores"] for row in rows]))
        width = micro["response_ids"].shape[1]
        pad = torch.nn.functional.pad
        fields = {
            n: torch.stack([pad(r[n], (0, width - len(r[n]))) for r in rows]) for n in rows[0]
        }
        return Output(**fields)

    def _row(self, micro: TensorDict, i: int) -> dict[str, Tensor]:
        import torch

        p, r = int(micro["prompt_lengths"][i]), int(micro["response_lengths"][i])
        prompt = micro["prompt_ids"][i][len(micro["prompt_ids"][i]) - p :]
        ids = torch.cat([prompt, micro["response_ids"][i][:r]])
        states = self.model.base_model(input_ids=ids[None], use_cache=False)[0][0]
        if self.kind == "score":
            return {"scores": self.head(states[-1])[0]}
        before = states[p - 1 : p - 1 + r]
        if self.kind == "value":
            return {"values": self.head(before)[:, 0]}
        log_p = (self.model.lm_head(before) / self.temperature).log_softmax(-1)
        return {
            "logprobs": log_p.gather(1, ids[p:, None])[:, 0],
            "entropy": -(log_p.exp() * log_p).sum(-1),
        }

    def step(
        self,
        micros: Sequence[TensorDict],
        loss_fn: Callable[[Output, TensorDict], Tensor],
        lr: float,
        max_grad_norm: float,
    ) -> Step:
        """One SGD step on the sum of the micro-batches' losses."""
        import torch

        for micro in micros:
            loss_fn(self.outputs(micro), micro).backward()  # type: ignore[no-untyped-call]
        named = self.named_parameters()
        grads = [p.grad for p in named.values() if p.grad is not None]
        norm = float(torch.stack([g.square().sum() for g in grads]).sum().sqrt())
        clip = max_grad_norm / norm if 0 < max_grad_norm < norm else 1.0
        with torch.no_grad():
            for parameter in named.values():
                if parameter.grad is not None:
                    parameter -= lr * clip * parameter.grad
                    parameter.grad = None
        return Step(norm, {n: p.detach().clone() for n, p in named.items()})
