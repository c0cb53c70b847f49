"""The strategies that rlframe ships, and the model engine over them."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe import Component, hookimpl

RLFRAME_API_VERSION = 1


@hookimpl
def rlframe_components() -> Sequence[Component]:
    """Offer the strategies and the model engine."""
    return (
        Component(
            "strategy",
            "single",
            "rlframe_strategies.single:SingleStrategy",
            summary="one process, one device",
        ),
        Component(
            "strategy",
            "ddp",
            "rlframe_strategies.ddp:DDPStrategy",
            summary="data parallelism: the whole model on every rank, gradients summed",
        ),
        Component(
            "strategy",
            "fsdp",
            "rlframe_strategies.fsdp:FSDPStrategy",
            summary="FSDP2: parameters, gradients and optimiser state sharded over the ranks",
        ),
        Component(
            "strategy",
            "deepspeed",
            "rlframe_strategies.deepspeed:DeepSpeedStrategy",
            requires=("deepspeed",),
            extra="deepspeed",
            summary="DeepSpeed ZeRO 0 to 3, with offload to the host",
        ),
        Component(
            "strategy",
            "megatron",
            "rlframe_strategies.megatron.strategy:MegatronStrategy",
            requires=("megatron.core",),
            extra="megatron",
            summary="megatron-core: tensor, pipeline, sequence and data parallelism",
        ),
        Component(
            "model",
            "causal-lm",
            "rlframe_strategies.engine:CausalLMEngine",
            summary="any AutoModelForCausalLM",
        ),
    )
