"""The rewards that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["REWARDS"]

REWARDS = (
    Component(
        "reward",
        "exact",
        "rlframe_plugins.rewards.exact:ExactAnswer",
        summary="1 when the answer is right, else 0",
    ),
    Component(
        "reward",
        "number",
        "rlframe_plugins.rewards.number:NumberReward",
        summary="1 when the last number in the response is the answer, else 0",
    ),
    Component(
        "reward",
        "model",
        "rlframe_plugins.rewards.model:ModelReward",
        summary="score of a sequence classifier, its own tokenizer and template",
    ),
    Component(
        "reward",
        "math",
        "rlframe_plugins.rewards.math:MathReward",
        requires=("math_verify",),
        extra="math",
        summary="1 when the response equals the answer by math-verify, else 0",
    ),
    Component(
        "reward",
        "regex",
        "rlframe_plugins.rewards.shape:RegexReward",
        summary="1 where a regular expression is found, else 0",
    ),
    Component(
        "reward",
        "format",
        "rlframe_plugins.rewards.shape:FormatReward",
        summary="1 for <think>...</think><answer>...</answer> and nothing else, else 0",
    ),
    Component(
        "reward",
        "length",
        "rlframe_plugins.rewards.shape:LengthReward",
        summary="0, down to -1 for responses that are too long",
    ),
    Component(
        "reward",
        "reasoning-gym",
        "rlframe_plugins.rewards.reasoning_gym:ReasoningGymReward",
        requires=("reasoning_gym",),
        extra="reasoning-gym",
        summary="score of the reasoning-gym task that made the row",
    ),
    Component(
        "reward",
        "http",
        "rlframe_plugins.rewards.remote:HttpReward",
        summary="what a service of your own answers to the samples",
    ),
    Component(
        "reward",
        "judge",
        "rlframe_plugins.rewards.judge:JudgeReward",
        summary="score of a language model behind an OpenAI-compatible address",
    ),
    Component(
        "reward",
        "code",
        "rlframe_plugins.rewards.code:CodeReward",
        summary="share of tests that the program in the response passes, in a sandbox",
    ),
)
