"""One vLLM engine for many tests: starting it takes half a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.testing.models import tiny_model
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.vllm.engine import VLLMRollout

BLOCK = 32
SEEDS = {"qwen2": 6, "llama": 4}
"""Of models whose greedy responses, as the kit asks for them, have no special token early."""
POSITIONS = 2048
"""Of the models: vLLM needs seconds to draw so many tokens, what a test does to it, far less."""
OPTIONS = {"engine": {"block_size": BLOCK}, "max_batch": 64, "kv_cache_gib": 0.25}


def model_for(folder: Path, kind: str) -> Path:
    """A random model whose heads have a width that vLLM has on a CPU, and a tokenizer."""
    more = {"seed": SEEDS[kind], "hidden_size": 64, "max_position_embeddings": POSITIONS}
    return char_tokenizer(tiny_model(folder, kind, **more))


class Lent:
    """A link whose ``close`` is left to its owner."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def close(self) -> None:
        """Others go on with it."""


class Shared:
    """A model, and engines over one link that serve it."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.path = model_for(folder / kind, kind)
        self._options = OPTIONS | options
        self.owner = self.fresh()
        self.owner._start("float32")
        self.link = self.owner._link

    def fresh(self, **options: Any) -> VLLMRollout:
        """An engine of its own, which starts at its first load."""
        config = VLLMRollout.Config(**{**self._options, **options})
        return VLLMRollout(config, RolloutSpec(str(self.path), ModelConfig(path=str(self.path))))

    def engine(self, **options: Any) -> VLLMRollout:
        """One without weights, over the processes that run."""
        made = self.fresh(**options)
        made._link = Lent(self.link)
        return made

    def close(self) -> None:
        """End the processes."""
        self.owner.close()
