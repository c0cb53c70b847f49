"""``--env verifiers env.taskset=ID``: tasksets, harnesses and rewards of the package ``verifiers``.

Its agents speak to an OpenAI-compatible server, so they are programs as the environment ``tools``
plays them: the server is the policy, with exact tokens. The rows come from the data set
``verifiers:ID``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlframe.errors import RolloutError
from rlframe.interfaces.data import Generate
from rlframe.requests import Episode, Request, Row
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.environment import ToolsEnvironment
from rlframe_plugins.envs.verifiers.columns import TASK, TASKSET
from rlframe_plugins.envs.verifiers.program import Verifiers

__all__ = ["VerifiersEnvironment"]


class VerifiersEnvironment(ToolsEnvironment):
    """Plays the task that the row holds."""

    @dataclass(frozen=True)
    class Config(ToolsConfig):
        """The taskset, and the limits of an episode."""

        taskset: str = ""
        """Id of an installed taskset: the name of its package."""
        options: dict[str, Any] = field(default_factory=dict)
        """Keys of verifiers' own ``env`` section: {agent: {max_turns: 3}, taskset: {size: 5}}."""

        def __post_init__(self) -> None:
            """Check ranges; raises ValueError."""
            super().__post_init__()
            if not self.taskset:
                raise ValueError(
                    "taskset is empty: name an installed taskset of verifiers, env.taskset=ID"
                )

    config: VerifiersEnvironment.Config
    gives_rewards: ClassVar[bool] = True
    user = Verifiers

    def __init__(self, config: VerifiersEnvironment.Config, tokenizer: Any) -> None:
        taskset = {**config.options.get("taskset", {}), "id": config.taskset}
        self.given = {
            "env": {**config.options, "taskset": taskset},
            "max_turns": config.max_turns,
            "max_tool_output": config.max_tool_output,
            "tool_timeout": config.tool_timeout_s,
        }
        super().__init__(config, tokenizer)

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """See :class:`Environment`."""
        taskset = self.config.taskset
        if TASK not in row.columns:
            raise RolloutError(
                f"env verifiers: a row needs the column '{TASK}', which --data "
                f"'verifiers:{taskset}' gives"
            )
        other = row.columns.get(TASKSET, taskset)
        if other != taskset:
            raise RolloutError(f"env verifiers: env.taskset is '{taskset}', the row's is '{other}'")
        bare = dataclasses.replace(row, columns={TASK: row.columns[TASK]})
        return await super().run(bare, request, generate)
