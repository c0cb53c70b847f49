"""The rollout engines that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["ROLLOUTS"]

ROLLOUTS = (
    Component(
        "rollout",
        "torch",
        "rlframe_plugins.rollouts.torch.engine:TorchRollout",
        summary="embedded engine over the trainer's own weights, continuous batching",
    ),
    Component(
        "rollout",
        "hf",
        "rlframe_plugins.rollouts.hf:HFRollout",
        summary="transformers' generate, the plain reference",
    ),
    Component(
        "rollout",
        "replay",
        "rlframe_plugins.rollouts.replay:ReplayRollout",
        summary="reads the rollouts that another run dumped",
    ),
    Component(
        "rollout",
        "vllm",
        "rlframe_plugins.rollouts.vllm.engine:VLLMRollout",
        requires=("vllm",),
        extra="vllm",
        summary="vLLM in processes of its own, beside the trainer or in another pool",
    ),
    Component(
        "rollout",
        "vllm-server",
        "rlframe_plugins.rollouts.vllm.servers:VLLMServers",
        summary="vLLM servers by URL, started with rlframe's routes",
    ),
    Component(
        "rollout",
        "sglang",
        "rlframe_plugins.rollouts.sglang.engine:SGLangRollout",
        summary="SGLang servers by URL: tokens in and out, weights, pause, sleep",
    ),
    Component(
        "rollout",
        "sglang-engine",
        "rlframe_plugins.rollouts.sglang.inside:SGLangEngine",
        requires=("sglang",),
        extra="sglang",
        summary="SGLang's engine in processes of its own, beside the trainer or in another pool",
    ),
    Component(
        "rollout",
        "openai",
        "rlframe_plugins.rollouts.openai.engine:OpenAIRollout",
        summary="any OpenAI-compatible endpoint, for evaluation",
    ),
)
