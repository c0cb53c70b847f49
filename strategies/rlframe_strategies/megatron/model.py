"""Megatron's GPT model for a rank's part of the mesh, with rlframe's names and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlframe.models.rope import inverse_frequencies
from rlframe_strategies.head import LogitMap
from rlframe_strategies.megatron import shim
from rlframe_strategies.megatron.arch import Arch
from rlframe_strategies.megatron.options import MegatronConfig
from rlframe_strategies.megatron.placing import Chunk, chunks_of, key_of
from rlframe_strategies.megatron.schedule import Head
from rlframe_strategies.vocabulary import Vocabulary

if TYPE_CHECKING:
    from rlframe.interfaces.strategy import ModelSpec
    from rlframe.weights.sharding import Cut
    from rlframe_strategies.megatron.parallel import Parallel

__all__ = ["Blueprint", "Model", "build_model"]


@dataclass(frozen=True)
class Blueprint:
    """What a model is built from; ``cuts`` by Hugging Face's names."""

    arch: Arch
    original_config: Any
    spec: ModelSpec
    options: MegatronConfig
    parallel: Parallel
    cuts: Mapping[str, Cut]
    device: torch.device
    dtype: torch.dtype

    @property
    def has_vocabulary(self) -> bool:
        """Whether the last stage ends in logits, not in a number."""
        return self.spec.kind in ("policy", "teacher")

    @property
    def padding(self) -> int | None:
        """The padding token, if the model has one."""
        found: int | None = self.original_config.get_text_config().pad_token_id
        return found

    @property
    def fused(self) -> bool:
        """Whether layers are Transformer Engine's: there is CUDA, and the package."""
        return self.device.type == "cuda" and find_spec("transformer_engine") is not None


class Model:
    """This rank's chunks, and their parameters by the layout's keys."""

    def __init__(self, blueprint: Blueprint, modules: list[Any], config: Any) -> None:
        self.config, self.device = config, blueprint.device
        self.fused_attention = blueprint.fused
        self._blueprint, self._modules = blueprint, modules
        self.chunks = list(modules)
        self.parameters: dict[str, nn.Parameter] = {}
        tied = blueprint.arch.tied and blueprint.has_vocabulary
        for module, chunk in zip(modules, _chunks(blueprint), strict=True):
            for name, parameter in module.named_parameters():
                self.parameters[key_of(name, chunk, tied)] = parameter
            if "score.weight" in self.parameters and chunk.last:
                self._score = module.score

    def learn(self) -> None:
        """Give the chunks gradient buffers, whose sums over the replicas are sums."""
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
        )

        options = DistributedDataParallelConfig(
            use_distributed_optimizer=self._blueprint.options.distributed_optimizer,
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=False,
            check_for_nan_in_grad=False,
        )
        self.chunks = [
            DistributedDataParallel(self.config, options, module) for module in self._modules
        ]

    def counts(self, key: str) -> bool:
        """Whether this rank's part of a parameter is counted in a sum over tensor ranks and stages.

        What all tensor-parallel ranks have is counted on the first, a tied embedding where it is
        the embedding.
        """
        blueprint = self._blueprint
        cut = blueprint.cuts.get(key)
        if cut is not None and len(cut.ends) > 1 and blueprint.parallel.stage > 0:
            return False
        shared = cut is not None and cut.axis is None
        return not shared or blueprint.parallel.peers.rank == 0

    def sum_gradients(self) -> None:
        """Over replicas, over tensor ranks for what sees part of the tokens, over tied copies."""
        from megatron.core.distributed import finalize_model_grads

        finalize_model_grads(self.chunks)

    def head(self) -> Head:
        """What the last stage makes of hidden states."""
        blueprint = self._blueprint
        parallel, logits = blueprint.parallel, LogitMap(temperature=blueprint.spec.temperature)
        if not blueprint.has_vocabulary:
            return Head(blueprint.spec.kind, self._score.weight, self._score.bias, logits, None)
        tied = blueprint.arch.tied
        weight = self.parameters["model.embed_tokens.weight" if tied else "lm_head.weight"]
        low = parallel.peers.rank * len(weight)
        real = weight[: max(min(blueprint.arch.vocabulary - low, len(weight)), 0)]
        vocabulary = None
        if parallel.sizes.tp > 1:
            vocabulary = Vocabulary(parallel.peers, low, blueprint.arch.vocabulary)
        return Head(blueprint.spec.kind, real, None, logits, vocabulary)


def build_model(blueprint: Blueprint) -> Model:
    """Chunks with zeros for weights; what is never trained has no gradient buffers."""
    config = _config(blueprint)
    on_cpu = blueprint.device.type == "cpu"
    with shim.moving_nowhere() if on_cpu else nullcontext():
        modules = [
            _module(blueprint, config, chunk, number)
            for number, chunk in enumerate(_chunks(blueprint))
        ]
    for module in modules:
        module.to(blueprint.device)
        for parameter in module.parameters():
            parameter.data.zero_()
            parameter.requires_grad_(blueprint.spec.optim is not None)
    if on_cpu:
        shim.redirect()
    return Model(blueprint, modules, config)


def _chunks(blueprint: Blueprint) -> list[Chunk]:
    sizes = blueprint.parallel.sizes
    return chunks_of(blueprint.arch.layers, blueprint.parallel.stage, sizes.pp, sizes.vpp)


def _module(blueprint: Blueprint, config: Any, chunk: Chunk, number: int) -> Any:
    from megatron.core.models.gpt import GPTModel

    arch, tp = blueprint.arch, blueprint.parallel.sizes.tp
    module = GPTModel(
        config=config,
        transformer_layer_spec=_layers(blueprint, len(chunk.layers)),
        vocab_size=-(-arch.vocabulary // tp) * tp,
        max_sequence_length=arch.max_positions,
        pre_process=chunk.first,
        post_process=chunk.last,
        share_embeddings_and_output_weights=arch.tied and blueprint.has_vocabulary,
        position_embedding_type="rope",
        rotary_base=arch.rope_theta,
        vp_stage=number if blueprint.parallel.sizes.vpp > 1 else None,
    )
    if chunk.first and blueprint.padding is not None:
        module.embedding.word_embeddings.register_forward_hook(_keep_padding(blueprint))
    frequencies, scale = inverse_frequencies(blueprint.original_config, arch.head_dim)
    assert scale == 1.0, "Arch.read takes embeddings that are not scaled"
    module.rotary_pos_emb.inv_freq = frequencies.to(blueprint.device)
    if chunk.last and not blueprint.has_vocabulary:
        module.output_layer = None
        module.score = nn.Linear(
            arch.hidden,
            1,
            bias=blueprint.spec.kind == "value",
            device=blueprint.device,
            dtype=blueprint.dtype,
        )
    return module


def _keep_padding(blueprint: Blueprint) -> Callable[..., Tensor]:
    """The padding token's embedding gets no gradient as an input, as transformers has it."""
    padding = torch.tensor(blueprint.padding, device=blueprint.device)
    peers, cut = blueprint.parallel.peers, blueprint.options.sequence_parallel

    def hook(_: Any, args: tuple[Tensor], out: Tensor) -> Tensor:
        is_padding = args[0].eq(padding)
        if cut:  # (S / tp, b, H), this rank's tokens
            is_padding = is_padding.T.chunk(peers.size)[peers.rank]
        return torch.where(is_padding[..., None], out.detach(), out)

    return hook


def _config(blueprint: Blueprint) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    arch, options, sizes = blueprint.arch, blueprint.options, blueprint.parallel.sizes
    on_cuda, fused = blueprint.device.type == "cuda", blueprint.fused
    return TransformerConfig(
        num_layers=arch.layers,
        hidden_size=arch.hidden,
        ffn_hidden_size=arch.ffn,
        num_attention_heads=arch.heads,
        num_query_groups=arch.kv_heads,
        kv_channels=arch.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=arch.eps,
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=arch.qkv_bias,
        qk_layernorm=arch.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        attention_softmax_in_fp32=True,
        params_dtype=blueprint.dtype,
        pipeline_dtype=blueprint.dtype,
        bf16=blueprint.dtype == torch.bfloat16,
        fp16=blueprint.dtype == torch.float16,
        tensor_model_parallel_size=sizes.tp,
        pipeline_model_parallel_size=sizes.pp,
        virtual_pipeline_model_parallel_size=sizes.vpp if sizes.vpp > 1 else None,
        pipeline_model_parallel_layout=_stages(blueprint) if sizes.pp > 1 else None,
        sequence_parallel=options.sequence_parallel,
        variable_seq_lengths=sizes.pp > 1 and sizes.vpp == 1,
        moe_token_dispatcher_type="alltoall",  # asked for by the line above; there are no experts
        # One batch of sends would swap activations and gradients between two interleaved stages.
        batch_p2p_comm=sizes.vpp == 1,
        overlap_p2p_comm=sizes.vpp > 1,
        calculate_per_token_loss=True,  # sums stay sums: no division by micro-batches or replicas
        use_cpu_initialization=not on_cuda,
        perform_initialization=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=on_cuda,
        bias_dropout_fusion=on_cuda,
        apply_rope_fusion=fused,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        **_recompute(blueprint),
    )


def _recompute(blueprint: Blueprint) -> dict[str, Any]:
    if not blueprint.spec.model.gradient_checkpointing:
        return {}
    if blueprint.options.recompute == "selective":
        return {"recompute_granularity": "selective"}
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }


def _stages(blueprint: Blueprint) -> list[list[str]]:
    """What every run of layers holds, in the model's order."""
    sizes, layers = blueprint.parallel.sizes, blueprint.arch.layers
    by_stage = [chunks_of(layers, stage, sizes.pp, sizes.vpp) for stage in range(sizes.pp)]
    runs = [by_stage[stage][run] for run in range(sizes.vpp) for stage in range(sizes.pp)]
    return [
        ["embedding"] * run.first + ["decoder"] * len(run.layers) + ["loss"] * run.last
        for run in runs
    ]


def _layers(blueprint: Blueprint, count: int) -> Any:
    """Modules of the layers: Transformer Engine's fused ones, or plain ones with our norm."""
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_layer import TransformerLayer

    if blueprint.fused:
        return specs.get_gpt_layer_with_transformer_engine_spec(qk_layernorm=blueprint.arch.qk_norm)
    parts = specs.get_gpt_layer_local_submodules(
        normalization="RMSNorm", qk_layernorm=blueprint.arch.qk_norm
    )
    parts.input_layernorm = parts.pre_mlp_layernorm = _Norm
    if blueprint.arch.qk_norm:
        attention = parts.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = _Norm
    layer = ModuleSpec(module=TransformerLayer, submodules=parts)
    return TransformerBlockSubmodules(layer_specs=[layer] * count, layer_norm=_Norm)


class _Norm:
    """Torch's RMSNorm; Megatron sums its gradient over ranks that see part of the tokens."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        """As Megatron calls it."""
        device = None if config.use_cpu_initialization else torch.device("cuda")
        norm = nn.RMSNorm(hidden_size, eps=eps, device=device, dtype=config.params_dtype)
        norm.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm
