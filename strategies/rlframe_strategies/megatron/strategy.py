"""Megatron-core: tensor, pipeline, sequence and data parallelism, optimiser state shared out.

Megatron-LM (arXiv 1909.08053, 2104.04473, 2205.05198). Weights are Hugging Face's by name, whatever
Megatron fuses; without CUDA a stand-in for it is installed, in this process alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

from rlframe.algorithm import Output
from rlframe.calling.protocol import Mesh
from rlframe.errors import ConfigError, ModelError
from rlframe.interfaces.strategy import LossFn, ModelSpec, Strategy
from rlframe.models.paths import resolve_model
from rlframe.weights.layout import Layout
from rlframe_strategies.exporting import write_model
from rlframe_strategies.loading import dtype_of, read_config
from rlframe_strategies.megatron.arch import Arch
from rlframe_strategies.megatron.feeding import feeds_of
from rlframe_strategies.megatron.gathering import gather_weights, with_generation_config
from rlframe_strategies.megatron.model import Blueprint, build_model
from rlframe_strategies.megatron.options import MegatronConfig
from rlframe_strategies.megatron.parallel import Parallel, Sizes
from rlframe_strategies.megatron.parking import Parking
from rlframe_strategies.megatron.placing import megatron_layout
from rlframe_strategies.megatron.schedule import Pipeline
from rlframe_strategies.megatron.shards import ShardOptimiser, Shards, state_layout
from rlframe_strategies.megatron.skeleton import fill_weights, skeleton_of
from rlframe_strategies.packing import Inputs, make_inputs
from rlframe_strategies.snapshot import load_snapshot, save_snapshot, staged_snapshot

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rlframe.config import Config as FitConfig
    from rlframe.config import OptimConfig

__all__ = ["MegatronStrategy"]

_NO_LORA = "model.lora.rank: strategy 'megatron' does not train adapters; use --strategy fsdp"
_OUTPUTS = ("logprobs", "entropy", "values", "scores")


class MegatronStrategy(Strategy):
    """Data parallelism takes the ranks that ``tp`` and ``pp`` leave.

    Only the last pipeline stage calls the loss; ``forward`` gives its outputs on every stage.
    Tied embeddings are one parameter, under its first name.
    """

    capabilities = frozenset({"dp", "tp", "pp", "packing", "grad-checkpoint"})
    Config = MegatronConfig
    optimiser: ShardOptimiser | None = None
    shards: Shards | None = None
    lora = None

    @classmethod
    def mesh_of(cls, config: Any, world: int) -> Mesh:
        """See :class:`Strategy`."""
        inside = config.tp * config.pp
        if world % inside:
            raise ConfigError(
                f"strategy.tp={config.tp} x strategy.pp={config.pp} does not divide {world} ranks: "
                f"use a pool of a multiple of {inside} devices, or smaller sizes"
            )
        return Mesh(dp=world // inside, pp=config.pp, tp=config.tp)

    @staticmethod
    def validate(config: FitConfig) -> None:
        """Refuse a CPU process that other parts of the run share."""
        cluster = config.cluster
        here = getattr(cluster.config, "device", "auto") == "cpu" or not torch.cuda.is_available()
        if here and "processes" not in cluster.load().capabilities:
            raise ValueError(
                "strategy 'megatron' replaces parts of torch.cuda where there is no CUDA, so it "
                "needs worker processes of its own: use --cluster ray, or --strategy fsdp"
            )

    # --- building -----------------------------------------------------------------------------

    def build(self, spec: ModelSpec) -> None:
        """Lay the model over the mesh, read this rank's part of the weights, make the optimiser."""
        if spec.model.lora.rank and spec.optim is not None:
            raise ConfigError(_NO_LORA)
        self.spec, options, self.parking = spec, self.config, Parking()
        if self.rank.threads:
            torch.set_num_threads(self.rank.threads)
        self.device = torch.device(self.rank.device)
        self.source = str(resolve_model(spec.path))
        self.original_config = read_config(self.source)
        arch = Arch.read(self.original_config)
        arch.check_sizes(options.tp, options.pp * options.vpp)
        self.parallel = Parallel(Sizes(options.tp, options.pp, options.vpp), self.rank, self.device)
        dtype = dtype_of(spec.model.dtype, self.device)
        self.skeleton = skeleton_of(read_config(self.source), spec, dtype)
        cuts = self.skeleton.cuts
        self._layout = megatron_layout(
            self.skeleton.params, cuts, self.mesh, options.vpp, arch.kv_heads
        )
        self.model = build_model(
            Blueprint(
                arch,
                self.original_config,
                spec,
                options,
                self.parallel,
                cuts,
                self.device,
                dtype,
            )
        )
        self._fill()
        if spec.optim is not None:
            self._make_optimiser(spec.optim)
        self.pipeline = Pipeline(self.model.chunks, self.model.config, self.parallel)

    def _make_optimiser(self, config: OptimConfig) -> None:
        self.model.learn()
        self.shards = Shards(self.model, self.parallel, self.config.distributed_optimizer)
        self._state = state_layout(self._layout, self.parallel.of_all(self.shards.spans))
        decays = {key for key, p in self.model.parameters.items() if p.ndim > 1}
        self.optimiser = ShardOptimiser(
            self.shards.weights(), decays, config, self.spec.optim_steps, self._state, self.rank
        )

    def _fill(self) -> None:
        pieces, kind = self._layout.ranks[self.rank.rank], self.spec.kind
        lacking = fill_weights(self.source, self._layout, pieces, self.views())
        headless = {name for name in lacking if name.startswith("score.")}
        if lacking - headless:
            names = ", ".join(sorted(lacking - headless)[:5])
            raise ModelError(f"model '{self.source}' lacks weights: {names}")
        if "score.weight" in headless and kind == "score" and self.spec.optim is None:
            raise ModelError(
                f"model '{self.source}' has no score head, so that it would score everything 0: "
                "name a sequence classifier with one label, such as --algo rm and rlframe export "
                "make"
            )

    # --- passes -------------------------------------------------------------------------------

    def forward(self, micro: TensorDict, computes: Sequence[str]) -> Output:
        """See :class:`Strategy`; every stage has the outputs."""
        names = self._checked(computes)
        rows, width = len(micro), micro["response_ids"].shape[1]
        shape = (rows,) if self.spec.kind == "score" else (rows, width)
        whole = torch.zeros(len(names), *shape, device=self.device)
        if rows:

            def keep(out: Mapping[str, Tensor], _: int) -> None:
                whole.copy_(torch.stack([out[name] for name in names]))

            with torch.no_grad():
                self._run([micro.to(self.device)], names, keep, learn=False)
                self.parallel.from_last(whole)
        return Output(**dict(zip(names, whole.cpu(), strict=True)))

    def forward_backward(
        self, micros: Sequence[TensorDict], computes: Sequence[str], loss_fn: LossFn
    ) -> None:
        """See :class:`Strategy`; ``loss_fn`` is called on the last stage alone."""
        names = self._checked(computes)
        if self.optimiser is None:
            raise ModelError("a model without an optimiser cannot be trained")
        there = [micro.to(self.device) for micro in micros if len(micro)]

        def share(out: Mapping[str, Tensor], number: int) -> Tensor | None:
            found = loss_fn(Output(**{n: out[n] for n in names}), there[number])
            return found if found.requires_grad else None

        if there:
            self._run(there, names, share, learn=True)

    def _run(
        self, micros: Sequence[TensorDict], computes: Sequence[str], finish: Any, *, learn: bool
    ) -> None:
        options, masked = self.config, not self.model.fused_attention
        feeds = feeds_of(
            [self._inputs(micro) for micro in micros],
            multiple=options.tp if options.sequence_parallel else 1,
            masked=masked,
            alike=options.vpp > 1,
        )
        self.pipeline.run(feeds, self.model.head, computes, finish, learn=learn)

    def _inputs(self, micro: TensorDict) -> Inputs:
        whole = self.spec.kind == "score"
        packed = self.config.packing == "on" or (
            self.config.packing == "auto" and self.model.fused_attention
        )
        pad = self.original_config.get_text_config().pad_token_id if whole else None
        return make_inputs(micro, packed=packed, masked=False, whole=whole, pad=pad)

    def _checked(self, computes: Sequence[str]) -> tuple[str, ...]:
        self.skeleton.module.check_computes(computes)
        wrong = [name for name in computes if name not in _OUTPUTS]
        if wrong:
            raise ConfigError(
                f"strategy 'megatron' computes no {wrong[0]}: use --strategy fsdp, or the method's "
                "form on sampled tokens"
            )
        return tuple(computes)

    # --- steps --------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, max_grad_norm: float) -> float:
        """See :class:`Strategy`."""
        if self.optimiser is None or self.shards is None:
            raise ModelError("a model without an optimiser cannot be trained")
        gradients = self.shards.gradients()
        norm = math.sqrt(float(self.parallel.sum_all(self.shards.sum_squares(gradients))))
        if math.isfinite(norm):
            if 0 < max_grad_norm < norm:
                torch._foreach_mul_(list(gradients.values()), max_grad_norm / norm)
            self.optimiser.step(gradients)
            self.shards.spread_weights()
        self.shards.clear()
        return norm

    def learning_rate(self) -> float:
        """The rate of the next step; 0 without an optimiser."""
        return self.optimiser.learning_rate if self.optimiser else 0.0

    def reduce(self, values: Tensor, op: Literal["sum", "max"] = "sum") -> Tensor:
        """See :class:`Strategy`."""
        return self.parallel.reduce(values, op)

    # --- storage ------------------------------------------------------------------------------

    def layout(self) -> Layout:
        """See :class:`Strategy`."""
        return self._layout

    stored_layout = layout

    def state_layout(self) -> Layout:
        """Where the elements of the optimiser's state lie."""
        return self._state

    def views(self) -> Mapping[str, Tensor]:
        """Megatron's local parameters by the layout's keys; no copies."""
        return self.weights()

    def weights(self) -> dict[str, Tensor]:
        """The same, as snapshots ask for it."""
        return {key: p.detach() for key, p in self.model.parameters.items()}

    stored_weights = weights

    def save(self, directory: Path) -> None:
        """See :class:`Strategy`."""
        save_snapshot(cast("Any", self), directory)

    def staged_save(self, directory: Path) -> Callable[[], None]:
        """See :class:`Strategy`."""
        return staged_snapshot(cast("Any", self), directory)

    def load(self, directory: Path) -> None:
        """Read what any strategy of any number of ranks saved."""
        load_snapshot(cast("Any", self), directory)

    def export(self, directory: Path) -> None:
        """Write a folder that ``from_pretrained`` loads, in the model's original type."""
        whole = gather_weights(self._layout, self.rank.rank, self.weights())
        if self.rank.rank == 0:
            module = with_generation_config(self.skeleton.module, self.source)
            write_model(module, whole, self.source, self.original_config, directory)

    def offload(self) -> None:
        """Move weights and optimiser state to the host; nothing to do on a CPU."""
        if self.device.type != "cpu":
            self.parking.park(self.weights().values())
            if self.optimiser is not None and self.shards is not None:
                self.parking.park(self.shards.buffers(), keep=False)
                state = self.optimiser.state().values()
                self.parking.park(tensor for held in state for tensor in held.values())
            torch.cuda.empty_cache()

    def onload(self) -> None:
        """The reverse of :meth:`offload`."""
        self.parking.bring_back()

    def close(self) -> None:
        """Drop the model and leave the process groups."""
        self.optimiser = self.shards = None
        for name in ("model", "pipeline"):
            self.__dict__.pop(name, None)
        self.parallel.leave()
