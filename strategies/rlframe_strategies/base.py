"""What strategies over a PyTorch module share: inputs, outputs, clipping, steps, snapshots.

A strategy says how the module is placed, where its local tensors and their gradients are, and how
numbers are summed over the ranks.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from rlframe.algorithm import Divergence, Output
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import LossFn, ModelSpec, Strategy
from rlframe.layout import Layout, ParamInfo
from rlframe_strategies.building import PackingRule, build_module, packing_of
from rlframe_strategies.divergence import Beside, Head
from rlframe_strategies.exporting import write_model
from rlframe_strategies.module import LanguageModel
from rlframe_strategies.optim import Optimiser, squared_norm
from rlframe_strategies.packing import Inputs, dummy_inputs, make_inputs, to_rows
from rlframe_strategies.snapshot import load_snapshot, save_snapshot

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = ["TorchStrategy"]


class TorchStrategy(Strategy):
    """A :class:`LanguageModel` trained by this process and its equals on other ranks."""

    module: LanguageModel
    device: torch.device
    spec: ModelSpec
    source: str
    original_config: Any
    packing: PackingRule
    optimiser: Optimiser | None = None
    _other: TorchStrategy | None = None
    _other_head: tuple[Tensor, Tensor | None] | None = None
    _form: Divergence

    # --- what a strategy says -----------------------------------------------------------------

    def start(self) -> None:
        """Join the process group, where there is one."""

    def place(self, module: LanguageModel) -> None:
        """Move the module to the device, shard it; parameters keep their names."""
        self.move(module, self.device)

    def move(self, module: LanguageModel, device: torch.device) -> None:
        """Move a placed module between device and host."""
        module.to(device)

    def local(self, parameter: Tensor) -> Tensor:
        """This rank's storage of a parameter, or of its gradient, as a plain tensor."""
        return parameter.detach()

    @abstractmethod
    def layout(self) -> Layout:
        """Where the parameters' elements lie; each rank knows the whole layout."""

    def sum_squares(self, local: Tensor) -> Tensor:
        """Squares () summed over every distinct gradient element, from this rank's sum."""
        return local

    def full(self, parameter: Tensor) -> Tensor:
        """A whole parameter; every rank takes part."""
        return parameter.detach()

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """One process: a copy."""
        return values.clone()

    @property
    def collective(self) -> bool:
        """Whether a pass without rows must run all the same, because other ranks wait for it."""
        return False

    # --- building -----------------------------------------------------------------------------

    def build(self, spec: ModelSpec) -> None:
        """Load the model, place it, make the optimiser."""
        if spec.model.lora.rank:
            raise ConfigError("model.lora.rank: this strategy does not train adapters")
        self.spec = spec
        if self.rank.threads:
            torch.set_num_threads(self.rank.threads)
        self.device = torch.device(self.rank.device)
        self.start()
        built = build_module(spec, self.device)
        self.module, self.source = built.module, built.source
        self.original_config = built.original_config
        self.packing = packing_of(self.module, self.config.packing, spec.model.attn)
        self.params = {
            name: ParamInfo(tuple(p.shape), str(p.dtype).removeprefix("torch."))
            for name, p in self.module.named_weights()
        }
        decays = {name for name, info in self.params.items() if len(info.shape) > 1}
        if spec.optim is None:
            self.module.requires_grad_(False)
        self.place(self.module)
        if spec.optim is not None:
            self.optimiser = Optimiser(self.weights(), decays, spec.optim, spec.optim_steps)

    def weights(self) -> dict[str, Tensor]:
        """This rank's storage of every parameter by canonical name."""
        return {name: self.local(p) for name, p in self.module.named_weights()}

    def parameters(self) -> dict[str, nn.Parameter]:
        """The module's parameters by canonical name."""
        return dict(self.module.named_weights())

    # --- passes -------------------------------------------------------------------------------

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
            if len(micro):
                there = micro.to(self.device)
                out = self._outputs(there, computes)
                share = loss_fn(Output(**out), there)
                if share.requires_grad:
                    torch.autograd.backward(share)
                elif self.collective:
                    _backward_nothing(out)
            elif self.collective:
                _backward_nothing(self._flat(None, computes)[0])

    def attach(self, other: Strategy, form: Divergence) -> None:
        """See :class:`Strategy`."""
        if not isinstance(other, TorchStrategy):
            raise ConfigError(f"role '{form.role}' must have a strategy of the policy's kind")
        ours, theirs = (len(one.head()[0]) for one in (self, other))
        if ours != theirs:
            raise ModelError(
                f"the models have {ours} and {theirs} tokens: role '{form.role}' must have the "
                "vocabulary of the one that learns from it"
            )
        self._other, self._form = other, form

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the language model's head, whole; every rank takes part."""
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
        return self.module(inputs, computes, beside), inputs

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

    # --- steps --------------------------------------------------------------------------------

    def gradients(self) -> dict[str, Tensor]:
        """This rank's part of the summed gradients; a parameter without one is left out."""
        grads = ((n, p.grad) for n, p in self.module.named_weights())
        return {name: self.local(grad) for name, grad in grads if grad is not None}

    @torch.no_grad()
    def step(self, max_grad_norm: float) -> float:
        """Clip, step, clear; see :meth:`Strategy.step`."""
        if self.optimiser is None:
            raise ModelError("a model without an optimiser cannot be trained")
        gradients = self.gradients()
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        for gradient in gradients.values():
            squares += squared_norm(gradient)
        norm = math.sqrt(float(self.sum_squares(squares)))
        if math.isfinite(norm):
            if 0 < max_grad_norm < norm:
                torch._foreach_mul_(list(gradients.values()), max_grad_norm / norm)
            self.optimiser.step(gradients)
        self.module.zero_grad(set_to_none=True)
        return norm

    def learning_rate(self) -> float:
        """The rate of the next step; 0 without an optimiser."""
        return self.optimiser.learning_rate if self.optimiser else 0.0

    # --- storage ------------------------------------------------------------------------------

    def views(self) -> Mapping[str, Tensor]:
        """This rank's parameter storage by canonical name; no copies."""
        return self.weights()

    def save(self, directory: Path) -> None:
        """Write weights, optimiser state, schedule and torch's RNG state."""
        save_snapshot(self, directory)

    def load(self, directory: Path) -> None:
        """Read what any strategy of any number of ranks saved."""
        load_snapshot(self, directory)

    def export(self, directory: Path) -> None:
        """Write a folder that ``from_pretrained`` loads, in the model's original type."""
        whole: dict[str, Tensor] = {}
        for name, parameter in self.module.named_weights():
            tensor = self.full(parameter)
            if self.rank.rank == 0:
                whole[name] = tensor.cpu()
        if self.rank.rank == 0:
            write_model(self.module, whole, self.source, self.original_config, directory)

    def offload(self) -> None:
        """Move weights, gradients and optimiser state to the host; nothing to do on a CPU."""
        if self.device.type != "cpu":
            self._move(torch.device("cpu"))

    def onload(self) -> None:
        """The reverse of :meth:`offload`."""
        if self.device.type != "cpu":
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        self.move(self.module, device)
        if self.optimiser is not None:
            self.optimiser.move(self.weights())

    def close(self) -> None:
        """Drop module and optimiser."""
        self.optimiser = None
        self.__dict__.pop("module", None)


def _backward_nothing(out: Mapping[str, Tensor]) -> None:
    """A backward pass that adds zero, so that this rank takes part in every collective."""
    tensors = [tensor for tensor in out.values() if tensor.requires_grad]
    torch.autograd.backward(tensors, [torch.zeros_like(tensor) for tensor in tensors])


def _empty(micro: TensorDict, computes: Sequence[str]) -> Output:
    width = micro["response_ids"].shape[1]
    shapes = {name: (0,) if name == "scores" else (0, width) for name in computes}
    return Output(**cast("dict[str, Any]", {name: torch.zeros(s) for name, s in shapes.items()}))
