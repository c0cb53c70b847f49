"""Environments of the package ``verifiers`` (its v1 interface): tasksets, harnesses, rewards.

Their agents speak to an OpenAI-compatible server, so they are programs as :mod:`.tools` plays them:
the server is the policy, with exact tokens. Written against verifiers 0.4.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlframe.errors import RolloutError
from rlframe.interfaces.data import Generate
from rlframe.requests import Episode, Request, Row
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.environment import ToolsEnvironment

__all__ = ["Program", "VerifiersEnvironment"]

# Imported here, so that the process which episodes are forked from has done it.
_V1 = importlib.import_module("verifiers.v1")
_LOADERS = importlib.import_module("verifiers.v1.utils.loaders")
_SETTINGS, _INDEX = "rlframe_verifiers", "index"


class Program:
    """One episode: a task of the taskset, played by its own agents."""

    async def run(self, client: Any, row: Mapping[str, Any]) -> float:
        """The mean reward of the episode's traces. Raises RuntimeError where it failed."""
        config = _LOADERS.resolve_env_config(row[_SETTINGS])
        environment = _LOADERS.load_environment(config)
        index = int(row[_INDEX])
        task = next(itertools.islice(iter(environment.taskset), index, None), None)
        if task is None:
            raise RuntimeError(f"the taskset has no task {index}")
        endpoint = _V1.EvalClientConfig(
            base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
        )
        context = _V1.ModelContext(model="policy", client=endpoint)
        async with environment.serving():
            episode = await environment.run_episode(task, context)
        if not episode.ok or not episode.traces:
            raise RuntimeError(f"the episode failed: {[str(one) for one in episode.errors]}")
        return float(sum(trace.reward for trace in episode.traces) / len(episode.traces))


class VerifiersEnvironment(ToolsEnvironment):
    """Plays the task whose number the row's column ``index`` has."""

    @dataclass(frozen=True)
    class Config(ToolsConfig):
        """The taskset, and the limits of an episode."""

        taskset: str = ""
        """Id of an installed taskset."""
        options: dict[str, Any] = field(default_factory=dict)
        """Further keys of verifiers' own ``env`` section: {agent: {harness: {id: "null"}}}."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if not self.taskset:
                raise ValueError("taskset is empty: name an installed taskset of verifiers")

    config: VerifiersEnvironment.Config
    user: ClassVar[type[Any]] = Program
    gives_rewards: ClassVar[bool] = True

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """See :class:`Environment`."""
        if _INDEX not in row.columns:
            raise RolloutError(
                f"env verifiers: a row needs the column '{_INDEX}', the number of its task"
            )
        taskset = {**self.config.options.get("taskset", {}), "id": self.config.taskset}
        columns = {**row.columns, _SETTINGS: {**self.config.options, "taskset": taskset}}
        return await super().run(dataclasses.replace(row, columns=columns), request, generate)
