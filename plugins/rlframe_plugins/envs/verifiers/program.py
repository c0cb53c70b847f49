"""The program of one episode: a task, played by the agents of its environment.

``verifiers`` is imported by ``prepare``, once, in the process that episodes are forked from.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from rlframe_plugins.envs.verifiers.columns import TASK

__all__ = ["Verifiers"]


class Verifiers:
    """One episode."""

    environment: ClassVar[Any] = None

    @classmethod
    def prepare(cls, given: Mapping[str, Any]) -> None:
        """Load the taskset and its environment. Raises what verifiers raises."""
        from verifiers.v1 import load_environment

        from rlframe_plugins.envs.verifiers.options import resolved

        # The servers of tools are programs of their own, and find what this process finds.
        os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        cls.environment = load_environment(resolved(given))

    async def run(self, client: Any, row: Mapping[str, Any]) -> dict[str, float]:
        """The rewards of the episode by name. Raises RuntimeError where it failed."""
        from verifiers.v1 import EvalClientConfig, ModelContext

        url = os.environ["OPENAI_BASE_URL"]
        endpoint = EvalClientConfig(base_url=url, api_key_var="OPENAI_API_KEY")
        context = ModelContext(model="policy", client=endpoint)
        environment = self.environment
        async with environment.serving():
            episode = await environment.run_episode(_task(environment, row[TASK]), context)
        return _rewards(episode, url)


def _task(environment: Any, data: Mapping[str, Any]) -> Any:
    """The task of these data, as the taskset itself makes it."""
    kind = type(environment.taskset).task_type()
    read = kind.data_type().model_validate_json(json.dumps(data))
    return kind(read, environment.config.taskset.task)


def _rewards(episode: Any, url: str) -> dict[str, float]:
    """Each reward's mean over the agents that are trained."""
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        told = "; ".join(f"{error.type}: {error.message}" for error in errors)
        raise RuntimeError(f"the episode failed: {told or 'no agent says why'}")
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    for trace in episode.traces:
        if not trace.agent.trainable and trace.agent.config.client.base_url == url:
            name = trace.agent.name
            raise RuntimeError(
                f"agent '{name}' is not to be trained but asks the policy: give it a model of its "
                f"own, env.options.{name}.client"
            )
    parts: defaultdict[str, float] = defaultdict(float)
    for trace in trained:
        for name, reward in trace.rewards.items():
            if reward is not None:
                parts[name] += float(reward.value) / len(trained)
    if not parts:
        raise RuntimeError("the taskset gives no reward: its tasks need a method with @reward")
    return dict(parts)
