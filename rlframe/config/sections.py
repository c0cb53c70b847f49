"""The sections of a config that are no component's own: run, model, data, optim, pools, sampling.

All frozen; lengths in tokens, times in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlframe.config.checks import check_range
from rlframe.requests import Sampling

__all__ = [
    "DataConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "PoolConfig",
    "RunConfig",
    "SamplingConfig",
]


@dataclass(frozen=True)
class RunConfig:
    """Where a run writes and how often."""

    dir: str = "runs"
    """Folder that holds one folder a run."""
    name: str = ""
    """Name of the run's folder; empty makes one from algorithm and time."""
    save_every: int = 50
    """Steps between snapshots, at least 0; 0 saves only at the end and on a signal."""
    keep: int = 2
    """Snapshots kept, at least 1."""
    save_in_background: bool = False
    """Write snapshots while training goes on; each rank copies its state to host memory for it."""
    max_restarts: int = 0
    """Times that new workers go on from the newest snapshot after some died or hung, at least 0."""
    restart_wait_s: float = 1.0
    """Pause before a restart, seconds, at least 0; it doubles up to 60 without a new snapshot."""
    validate_every: int = 0
    """Steps between validations, at least 0; 0 validates only before and after."""
    samples_every: int = 10
    """Steps between written samples of prompts and responses, at least 0; 0 writes none."""
    trace_every: int = 32
    """Draws between those whose episodes of several turns go whole to traces/; 0 writes none."""
    dump_rollouts: bool = False
    """Write every completion under rollouts/, so that the rollout 'replay' can play them again."""
    validation_prompts: int = 512
    """Validation prompts at most, at least 1."""
    profile_steps: tuple[int, ...] = ()
    """Steps of which torch writes a profile, a trace a rank of the policy, under profile/."""
    timeline_mb: int = 16
    """Most that the run's timeline takes on disk, MB, at least 0; the newest is kept, 0: none."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        for name in ("save_every", "max_restarts", "validate_every", "samples_every"):
            check_range(self, name, 0)
        check_range(self, "trace_every", 0)
        check_range(self, "restart_wait_s", 0)
        check_range(self, "timeline_mb", 0)
        check_range(self, "keep", 1)
        check_range(self, "validation_prompts", 1)
        if not self.dir:
            raise ValueError("dir must name a folder")
        if "/" in self.name or self.name in (".", ".."):
            raise ValueError(f"name must be the name of a folder, not {self.name!r}")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters; only they are trained."""

    rank: int = 0
    """Rank of the adapters, at least 0; 0 trains the whole model."""
    alpha: float = 16.0
    """Scale of the adapters before division by the rank, above 0."""
    dropout: float = 0.0
    """Share of adapter inputs dropped in training, 0 to below 1."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get an adapter; empty takes every one."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "rank", 0)
        check_range(self, "alpha", above=0)
        check_range(self, "dropout", 0, below=1)


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained, and how it is built."""

    path: str = ""
    """Hugging Face folder or name, or pkg:PACKAGE/FOLDER for one inside a Python package."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights; auto takes bfloat16 on a GPU and float32 on a CPU."""
    attn: str = "auto"
    """Attention of transformers: auto, eager, sdpa, flash_attention_2, ..."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank adapters."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    engine: str = ""
    """Model engine that runs the role."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        if not self.path:
            raise ValueError("path is empty: name a model with --model PATH")
        if not self.attn:
            raise ValueError("attn must name an attention, or auto")


@dataclass(frozen=True)
class DataConfig:
    """Prompts: where they come from and how many a step takes."""

    train: str = ""
    """Dataset to learn from: jsonl:PATH, builtin:NAME, ..., or mix:3*URI + URI by weight."""
    validate: str | None = None
    """Dataset to validate on; null for none."""
    prompt_key: str = "prompt"
    """Column that holds the prompt: text, or a list of chat messages."""
    columns: dict[str, str] = field(default_factory=dict)
    """Further names for columns; dots reach inside: {answer: reward_model.ground_truth}."""
    template: str = "auto"
    """auto, chat (the tokenizer's template), plain, or text with {column} in it."""
    max_prompt_tokens: int = 512
    """Longest prompt, tokens, at least 1."""
    over_long: Literal["error", "drop", "truncate-left", "truncate-right"] = "error"
    """What happens to a longer prompt; what is dropped or cut is counted."""
    prompts_per_step: int = 16
    """Prompts whose groups make one batch, at least 1."""
    second: str | None = None
    """Dataset of written responses for methods with a term on them (ptx); null for none."""
    second_per_prompt: int = 1
    """Rows of the second dataset for each prompt of a step, at least 1."""
    max_refills: int = 20
    """Times that a step may draw again when groups were refused or failed, at least 0."""
    shuffle: bool = True
    """Draw prompts in a new order each epoch; false keeps the file's order."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        if not self.train:
            raise ValueError("train is empty: name a dataset with --data URI")
        if not self.prompt_key:
            raise ValueError("prompt_key must name a column")
        check_range(self, "max_prompt_tokens", 1)
        check_range(self, "prompts_per_step", 1)
        check_range(self, "max_refills", 0)
        check_range(self, "second_per_prompt", 1)


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser; all schedules count optimiser steps."""

    name: Literal["adamw", "sgd"] = "adamw"
    """adamw or sgd."""
    lr: float = 1e-6
    """Highest learning rate, at least 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of AdamW's two moments, each 0 to below 1."""
    eps: float = 1e-8
    """Added to AdamW's denominator, above 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the learning rate after the warm-up, to the end of the run."""
    warmup_steps: int = 0
    """Optimiser steps in which the rate rises linearly, at least 0."""
    min_lr_ratio: float = 0.0
    """Share of lr at which linear and cosine end, 0 to 1."""
    weight_decay: float = 0.0
    """Decoupled weight decay, at least 0."""
    max_grad_norm: float = 1.0
    """Norm to which gradients are clipped, at least 0; 0 never clips."""
    tokens_per_microbatch: int = 8192
    """Prompt and response tokens in one forward pass, at least 1; one row may be longer."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        for name in ("lr", "warmup_steps", "weight_decay", "max_grad_norm"):
            check_range(self, name, 0)
        check_range(self, "eps", above=0)
        check_range(self, "min_lr_ratio", 0, 1)
        check_range(self, "tokens_per_microbatch", 1)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must each be at least 0 and below 1, not {self.betas}")


@dataclass(frozen=True)
class SamplingConfig:
    """Options that every rollout engine has; its own ``Config`` derives from this."""

    pool: str = "train"
    """Pool of devices on which the engine lives."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights that it serves, and that travel to it; auto: the trainer's own."""
    temperature: float = 1.0
    """Softmax temperature, 0 to 100; 0 takes the most probable token."""
    top_p: float = 1.0
    """Nucleus mass kept, above 0 to 1; 1 keeps all."""
    top_k: int = 0
    """Number of most probable tokens kept, at least 0; 0 keeps all."""
    min_p: float = 0.0
    """Tokens below this share of the most probable one are dropped, 0 to 1."""
    max_new_tokens: int = 256
    """Longest response, tokens, at least 1."""
    min_new_tokens: int = 0
    """End tokens and stop strings have no effect before this many tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a response; they stay in it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response, besides the model's own."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "temperature", 0, 100)
        check_range(self, "top_p", above=0, high=1)
        check_range(self, "top_k", 0)
        check_range(self, "min_p", 0, 1)
        check_range(self, "max_new_tokens", 1)
        check_range(self, "min_new_tokens", 0)
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be at most max_new_tokens={self.max_new_tokens}, "
                f"not {self.min_new_tokens}"
            )
        if "" in self.stop:
            raise ValueError("stop must not hold an empty string")

    def sampling(self) -> Sampling:
        """What a request carries."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
        )


@dataclass(frozen=True)
class PoolConfig:
    """Devices that roles share."""

    nodes: int = 1
    """Machines, at least 1."""
    devices: int = 1
    """Devices a machine, at least 1."""

    def __post_init__(self) -> None:
        """Check ranges; raises ValueError."""
        check_range(self, "nodes", 1)
        check_range(self, "devices", 1)
