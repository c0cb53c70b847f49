"""What a collector is made of, so that it can be made in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.config import Config, RewardConfig, Selected
from rlframe.recording.tracing import Tracer

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm
    from rlframe.collecting.collector import Collector
    from rlframe.collecting.offline import OfflineCollector
    from rlframe.interfaces.rollout import RolloutEngine
    from rlframe.rewards import Scorer

__all__ = ["CollectorParts", "CollectorSpec"]


@dataclass(frozen=True)
class CollectorParts:
    """The objects that a collector uses, loaded."""

    algorithm: Algorithm
    tokenizer: Any
    scorer: Scorer


@dataclass(frozen=True)
class CollectorSpec:
    """Calling it makes the collector. ``client`` is None for offline methods.

    Elsewhere algorithm, tokenizer, rewards and environment are loaded anew from what the config
    names; ``here``, the controller's own objects, stays in its process.
    """

    algorithm: Selected
    environment: Selected
    tail: Selected
    reward: RewardConfig
    tokenizer_path: str
    prompt_key: str
    max_new_tokens: int
    seed: int
    client: RolloutEngine | None
    here: CollectorParts | None = None
    tracer: Tracer = Tracer()

    @classmethod
    def of(
        cls,
        config: Config,
        tokenizer_path: str,
        max_new_tokens: int,
        client: RolloutEngine | None,
        here: CollectorParts | None = None,
        run_dir: Path | None = None,
    ) -> CollectorSpec:
        """From a run's config; without a folder of the run nothing is traced."""
        return cls(
            algorithm=config.algo,
            environment=config.env,
            tail=config.tail,
            reward=config.reward,
            tokenizer_path=tokenizer_path,
            prompt_key=config.data.prompt_key,
            max_new_tokens=max_new_tokens,
            seed=config.seed,
            client=client,
            here=here,
            tracer=Tracer(str(run_dir / "traces"), config.run.trace_every) if run_dir else Tracer(),
        )

    def __call__(self) -> Collector | OfflineCollector:
        """Make it. Raises ModelError, RewardError or PluginError for what cannot be loaded."""
        from rlframe.collecting.collector import Collector
        from rlframe.collecting.offline import OfflineCollector

        parts = self.here or self._load()
        if self.client is None:
            return OfflineCollector(
                parts.algorithm, parts.tokenizer, self.max_new_tokens, self.prompt_key
            )
        environment = self.environment.load()(self.environment.config, parts.tokenizer)
        return Collector(
            parts.algorithm,
            environment,
            parts.scorer,
            self.client,
            self.seed,
            self.prompt_key,
            tracer=self.tracer,
            tail=self.tail.load()(self.tail.config),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "here": None}

    def _load(self) -> CollectorParts:
        from rlframe.models.paths import load_tokenizer
        from rlframe.rewards import Scorer

        return CollectorParts(
            self.algorithm.load()(self.algorithm.config),
            load_tokenizer(self.tokenizer_path),
            Scorer.from_config(self.reward),
        )
