"""Forward and backward passes of a :class:`LanguageModel` over micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from rlframe.algorithm import Divergence, Output
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import LossFn, Strategy
from rlframe_strategies.building import PackingRule
from rlframe_strategies.divergence import Beside, Head
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.packing import Inputs, dummy_inputs, make_inputs, to_rows

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe_strategies.optim import Optimiser

__all__ = ["Passes"]


class Passes(Strategy):
    """The part of a strategy that runs the module: inputs, outputs, gradients."""

    module: LanguageModel
    device: torch.device
    packing: PackingRule
    optimiser: Optimiser | None = None
    _other: Passes | None = None
    _other_head: tuple[Tensor, Tensor | None] | None = None
    _form: Divergence

    def full(self, parameter: Tensor) -> Tensor:
        """A whole parameter; every rank takes part."""
        return parameter.detach()

    @property
    def collective(self) -> bool:
        """Whether a pass without rows must run all the same, because other ranks wait for it."""
        return False

    def run(
        self, inputs: Inputs, computes: Sequence[str], beside: Beside | None
    ) -> dict[str, Tensor]:
        """Outputs of the module, (N,) a response token each or (b,) a row."""
        out: dict[str, Tensor] = self.module(inputs, computes, beside)
        return out

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss ()."""
        torch.autograd.backward(loss)

    def forward(self, micro: TensorDict, computes: Sequence[str]) -> Output:
        """A pass without gradient; outputs on the CPU, whole rows."""
        self.module.check_computes(computes)
        with torch.no_grad():
            if not len(micro):
                if self.collective:
                    self._flat(None, computes)
                return _empty(micro, computes)
            out = self._outputs(micro.to(self.device), computes)
        return Output(**{name: values.cpu() for name, values in out.items()})

    def forward_backward(
        self, micros: Sequence[TensorDict], computes: Sequence[str], loss_fn: LossFn
    ) -> None:
        """Add every micro-batch's gradient; ``loss_fn`` is not called for an empty one."""
        self.module.check_computes(computes)
        if self.optimiser is None:
            raise ModelError("a model without an optimiser cannot be trained")
        for micro in micros:
            with self.drawing():
                self._pass(micro, computes, loss_fn)

    def drawing(self) -> AbstractContextManager[None]:
        """Around a micro-batch's forward and backward pass: what is random there is drawn."""
        return nullcontext()

    def _pass(self, micro: TensorDict, computes: Sequence[str], loss_fn: LossFn) -> None:
        if len(micro):
            there = micro.to(self.device)
            out = self._outputs(there, computes)
            share = loss_fn(Output(**out), there)
            if share.requires_grad:
                self.backward(share)
            elif self.collective:
                self.backward(_nothing(out))
        elif self.collective:
            self.backward(_nothing(self._flat(None, computes)[0]))

    def attach(self, other: Strategy, form: Divergence) -> None:
        """See :class:`Strategy`."""
        if not isinstance(other, Passes):
            raise ConfigError(f"role '{form.role}' must have a strategy of the policy's kind")
        ours, theirs = self.tokens(), other.tokens()
        if ours != theirs:
            raise ModelError(
                f"the models have {ours} and {theirs} tokens: role '{form.role}' must have the "
                "vocabulary of the one that learns from it"
            )
        self._other, self._form = other, form

    def tokens(self) -> int:
        """Tokens of the language model's vocabulary; every rank takes part."""
        return len(self.head()[0])

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the language model's head; every rank takes part."""
        head = self.module.lm.get_output_embeddings()
        bias = getattr(head, "bias", None)
        return self.full(head.weight), None if bias is None else self.full(bias)

    def _beside(self, micro: TensorDict | None) -> Beside:
        """The other model's side of a divergence; its head is kept, as it never changes."""
        other = self._other
        if other is None:
            raise ModelError("no model was attached to measure a divergence from")
        if self._other_head is None:
            self._other_head = other.head()
        with torch.no_grad():
            states = other._flat(micro, ("states",))[0]["states"]
        weight, bias = (None if t is None else t.to(states.dtype) for t in self._other_head)
        assert weight is not None
        return Beside((states, Head(weight, bias, other.module.logits)), self._form)

    def _flat(
        self, micro: TensorDict | None, computes: Sequence[str]
    ) -> tuple[dict[str, Tensor], Inputs]:
        """Outputs of a micro-batch, or of a row that is thrown away where there is none."""
        beside = self._beside(micro) if "divergence" in computes else None
        inputs = dummy_inputs(self.device) if micro is None else self._inputs(micro)
        return self.run(inputs, computes, beside), inputs

    def _outputs(self, micro: TensorDict, computes: Sequence[str]) -> dict[str, Tensor]:
        flat, inputs = self._flat(micro, computes)
        return {n: v if n == "scores" else to_rows(v, inputs) for n, v in flat.items()}

    def _inputs(self, micro: TensorDict) -> Inputs:
        whole = self.module.kind == "score"
        packs = self.packing.applies(
            int((micro["prompt_lengths"] + micro["response_lengths"]).max())
        )
        ours = packs and self.packing.ours
        self.module.use_packed_attention(ours)
        pad = self.module.lm.config.get_text_config().pad_token_id if whole else None
        return make_inputs(micro, packed=packs, masked=not packs, whole=whole, shared=ours, pad=pad)


def _nothing(out: Mapping[str, Tensor]) -> Tensor:
    """A loss () with gradient zero, so that this rank's backward takes part in every collective."""
    return torch.stack([(t * 0).sum() for t in out.values() if t.requires_grad]).sum()


def _empty(micro: TensorDict, computes: Sequence[str]) -> Output:
    width = micro["response_ids"].shape[1]
    shapes = {name: (0,) if name == "scores" else (0, width) for name in computes}
    return Output(**cast("dict[str, Any]", {name: torch.zeros(s) for name, s in shapes.items()}))
