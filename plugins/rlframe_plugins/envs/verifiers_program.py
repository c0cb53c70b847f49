"""The program of one episode of ``verifiers``; importing it imports that package.

The process which episodes are forked from has done it once for all.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["INDEX", "SETTINGS", "Program"]

SETTINGS, INDEX = "rlframe_verifiers", "index"
_V1 = importlib.import_module("verifiers.v1")
_LOADERS = importlib.import_module("verifiers.v1.utils.loaders")


class Program:
    """One episode: a task of the taskset, played by its own agents."""

    async def run(self, client: Any, row: Mapping[str, Any]) -> float:
        """The mean reward of the episode's traces. Raises RuntimeError where it failed."""
        config = _LOADERS.resolve_env_config(row[SETTINGS])
        environment = _LOADERS.load_environment(config)
        index = int(row[INDEX])
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
