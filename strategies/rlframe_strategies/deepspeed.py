"""DeepSpeed's ZeRO: optimiser state, gradients and parameters cut over the ranks, in three stages.

ZeRO (arXiv 1910.02054) and ZeRO-Offload (arXiv 2101.06840). What DeepSpeed averages is summed here,
its gradient norm, clipping and learning rate are rlframe's, and snapshots are rlframe's own files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rlframe.config import check_range
from rlframe.errors import ConfigError
from rlframe.weights.layout import Layout
from rlframe.weights.sharding import flat_layout
from rlframe_strategies.base import TorchStrategy
from rlframe_strategies.classifier import Classifier
from rlframe_strategies.deepspeed_optim import ZeroOptimiser, make_base
from rlframe_strategies.deepspeed_setup import start_deepspeed
from rlframe_strategies.deepspeed_zero import Zero, ZeroFlat, ZeroSharded
from rlframe_strategies.groups import ProcessGroup

if TYPE_CHECKING:
    from rlframe.config import OptimConfig
    from rlframe.interfaces.strategy import ModelSpec
    from rlframe_strategies.divergence import Beside
    from rlframe_strategies.module import LanguageModel
    from rlframe_strategies.optim import Optimiser
    from rlframe_strategies.packing import Inputs

__all__ = ["DeepSpeedStrategy"]

_WAITING = "applied_pre_backward_ref_cnt"
"""DeepSpeed's count of the outputs of a module whose backward pass is to come."""


class DeepSpeedStrategy(TorchStrategy):
    """Any number of data-parallel ranks, one included.

    Weights lie whole on every rank in stages 0 to 2, as equal runs of each flattened parameter in
    stage 3. A frozen model is cut in stage 3 too; in the others it is a plain module.
    """

    capabilities = frozenset({"dp", "packing", "grad-checkpoint"})

    @dataclass(frozen=True)
    class Config:
        """Options of ``strategy: deepspeed``."""

        packing: Literal["auto", "on", "off"] = "auto"
        """auto, on or off: lay rows side by side instead of padding them."""
        zero: int = 3
        """0 to 3: cut nothing, the optimiser's state, also gradients, also parameters."""
        offload_optimizer: bool = False
        """Keep float32 weights and the optimiser's state in host memory and step there (2, 3)."""
        offload_params: bool = False
        """Keep parameters in host memory between their uses (3)."""
        persist_below: int = 100_000
        """Parameters of at most so many elements stay whole between steps (3); 0: none."""
        bucket_elements: int = 50_000_000
        """Gradient elements that are summed at once."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            check_range(self, "zero", 0, 3)
            check_range(self, "persist_below", 0)
            check_range(self, "bucket_elements", 1)
            if self.offload_optimizer and self.zero < 2:
                raise ValueError("offload_optimizer needs zero=2 or zero=3")
            if self.offload_params and self.zero != 3:
                raise ValueError("offload_params needs zero=3")

    engine: Any = None
    _zero: Zero | None = None

    # --- building -----------------------------------------------------------------------------

    def build(self, spec: ModelSpec) -> None:
        """See the base."""
        if spec.model.lora.rank and spec.optim is not None:
            raise ConfigError(
                "strategy 'deepspeed' does not train adapters: set model.lora.rank=0, or choose "
                "--strategy fsdp"
            )
        if spec.model.dtype == "float16" and spec.optim is not None:
            raise ConfigError(
                "strategy 'deepspeed' does not scale losses for float16: set model.dtype=bfloat16 "
                "or float32"
            )
        super().build(spec)

    def start(self) -> None:
        """Join the process group, load DeepSpeed."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.group = ProcessGroup(self.rank, self.device)
        self._deepspeed = start_deepspeed(self.rank, self.device, cpu_adam=self._uses_cpu_adam)

    def place(self, module: LanguageModel) -> None:
        """Give the module to an engine; a frozen one is left alone in stages 0 to 2."""
        optim = self.spec.optim
        if optim is None and self.config.zero < 3:
            super().place(module)
            return
        given: dict[str, Any] = {"model": module, "config": self._options()}
        if optim is not None:
            decays = {name for name, info in self.params.items() if len(info.shape) > 1}
            weights = self.parameters()
            given["optimizer"] = make_base(weights, decays, optim, cpu_adam=self._uses_cpu_adam)
        self.engine = self._deepspeed.initialize(**given)[0]
        if optim is not None:
            self.engine.set_gradient_accumulation_boundary(False)
        if self.config.zero == 3:
            for parameter in _used_directly(module):
                self._deepspeed.zero.register_external_parameter(module, parameter)

    def _options(self) -> dict[str, Any]:
        """DeepSpeed's config; what is not said here is its default."""
        config, optim = self.config, self.spec.optim
        low = "bfloat16" in {info.dtype for info in self.params.values()}
        host = {"device": "cpu", "pin_memory": self.device.type == "cuda"}
        elements = sum(math.prod(info.shape) for info in self.params.values())
        zero: dict[str, Any] = {
            "stage": config.zero,
            "reduce_bucket_size": min(config.bucket_elements, elements),
            "stage3_param_persistence_threshold": config.persist_below,
        }
        if config.offload_optimizer and optim is not None:
            zero["offload_optimizer"] = host
        if config.offload_params:
            zero["offload_param"] = host
        options: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        }
        if low and config.zero:
            options["bf16"] = {"enabled": True, "check_grad_overflow": True}
        if low and config.zero > 1:
            options["data_types"] = {"grad_accum_dtype": "fp32"}
        return options

    def make_optimiser(self, decays: set[str], config: OptimConfig) -> Optimiser:
        """Stage 0 leaves the step to rlframe; the others have an optimiser inside."""
        if self.config.zero == 0:
            return super().make_optimiser(decays, config)
        kind = ZeroSharded if self.config.zero == 3 else ZeroFlat
        names = {p: name for name, p in self.module.named_weights()}
        self._zero = kind(self.engine, names, self.params)
        return ZeroOptimiser(self._zero, config, self.spec.optim_steps)

    @property
    def _uses_cpu_adam(self) -> bool:
        optim = self.spec.optim
        return self.config.offload_optimizer and optim is not None and optim.name == "adamw"

    # --- passes and steps -----------------------------------------------------------------------

    def run(
        self, inputs: Inputs, computes: Sequence[str], beside: Beside | None
    ) -> dict[str, Tensor]:
        """See the base; an engine gathers what is cut."""
        if self.engine is None:
            return super().run(inputs, computes, beside)
        out: dict[str, Tensor] = self.engine(inputs, computes, beside)
        if self.config.zero == 3:
            # One gather before the backward pass, whichever outputs the loss of this rank uses:
            # DeepSpeed counts one an output, and wants the same order of gathers on all ranks.
            trains = any(tensor.requires_grad for tensor in out.values())
            setattr(self.module, _WAITING, int(trains))
        return out

    def backward(self, loss: Tensor) -> None:
        """See the base; the loss grows by the number of ranks, over which DeepSpeed averages."""
        self.engine.backward(loss * self.rank.world, scale_wrt_gas=False)

    @property
    def collective(self) -> bool:
        """Other ranks wait for this one's part of every gather and of every sum."""
        return self.rank.world > 1 and (self.config.zero == 3 or self.optimiser is not None)

    def gradients(self) -> dict[str, Tensor]:
        """Stage 0: whole sums by name; the others: disjoint parts of them."""
        if self._zero is not None:
            return self._zero.gradients()
        self.engine.set_gradient_accumulation_boundary(True)
        self.engine.allreduce_gradients()
        self.engine.set_gradient_accumulation_boundary(False)
        return super().gradients()

    @torch.no_grad()
    def step(self, max_grad_norm: float) -> float:
        """See the base; gradients that are not finite are forgotten in DeepSpeed too."""
        norm = super().step(max_grad_norm)
        if self._zero is not None:
            if not math.isfinite(norm):
                self._zero.drop()
            self._zero.clear()
        return norm

    def sum_squares(self, local: Tensor) -> Tensor:
        """Parts are disjoint, so squares add up; in stage 0 every rank has the whole."""
        return local if self._zero is None else self.group.reduce(local)

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """All-reduce over the ranks; a new tensor."""
        return self.group.reduce(values, op)

    # --- storage ------------------------------------------------------------------------------

    def layout(self) -> Layout:
        """Whole parameters, in stage 3 equal runs of each."""
        world = self.rank.world
        if self.config.zero == 3:
            return flat_layout(self.params, world)
        return Layout.full(self.params, world)

    def state_layout(self) -> Layout:
        """That of the tensors that are updated."""
        return self.layout() if self._zero is None else self._zero.layout()

    def local(self, parameter: Tensor) -> Tensor:
        """The parameter, or this rank's run of it; the run's padding follows it."""
        if self.config.zero != 3:
            return parameter.detach()
        run: Tensor = parameter.ds_tensor.detach()  # type: ignore[attr-defined]
        return run

    def full(self, parameter: Tensor) -> Tensor:
        """Gather a parameter."""
        if self.config.zero != 3:
            return parameter.detach()
        with self._deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()

    def load(self, directory: Path) -> None:
        """See the base; parameters that were kept whole are gathered anew."""
        if self.config.zero == 3:
            self.engine.empty_partition_cache()
        super().load(directory)

    def offload(self) -> None:
        """Move the optimiser's state, in stage 0 everything, to the host; nothing on a CPU."""
        self._move_state(torch.device("cpu"))

    def onload(self) -> None:
        """The reverse of :meth:`offload`."""
        self._move_state(self.device)

    def _move_state(self, device: torch.device) -> None:
        if self.device.type == "cpu" or self.config.offload_optimizer:
            return
        if isinstance(self.optimiser, ZeroOptimiser):
            self.optimiser.move_to(device)
        elif self.config.zero < 3:
            self._move(device)

    def close(self) -> None:
        """Drop engine and module; leave the process group."""
        if self.engine is not None:
            self.engine.destroy()
        self.engine = self._zero = None
        super().close()
        if self.group.last:
            self._deepspeed.comm.destroy_process_group()
        self.group.leave()


def _used_directly(module: LanguageModel) -> Iterator[nn.Parameter]:
    """Parameters that the module's own forward pass uses, not a child's: those of its head."""
    if isinstance(module, Classifier):
        return iter(())
    scores = module.kind in ("value", "score")
    head: nn.Module = module.score if scores else module.lm.get_output_embeddings()
    return head.parameters()
