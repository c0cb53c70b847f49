"""Environments of the package ``verifiers`` (its v1 interface): tasksets, harnesses, rewards.

Their agents speak to an OpenAI-compatible server, so they are programs as :mod:`.tools` plays them:
the server is the policy, with exact tokens. Written against verifiers 0.4.
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

__all__ = ["VerifiersEnvironment"]

_SETTINGS, _INDEX = "rlframe_verifiers", "index"


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
    gives_rewards: ClassVar[bool] = True

    def __init__(self, config: VerifiersEnvironment.Config, tokenizer: Any) -> None:
        from rlframe_plugins.envs.verifiers_program import Program

        self.user = Program
        super().__init__(config, tokenizer)

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """See :class:`Environment`."""
        if _INDEX not in row.columns:
            raise RolloutError(
                f"env verifiers: a row needs the column '{_INDEX}', the number of its task"
            )
        taskset = {**self.config.options.get("taskset", {}), "id": self.config.taskset}
        columns = {**row.columns, _SETTINGS: {**self.config.options, "taskset": taskset}}
        return await super().run(dataclasses.replace(row, columns=columns), request, generate)
