"""A taskset of several turns, with tools on a server of its own for every episode."""

from __future__ import annotations

import verifiers.v1 as vf
from rl_adder_tool import AdderToolset, Count

__all__ = ["AdderTaskset"]


class AdderData(vf.TaskData):
    answer: str


class AdderConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class AdderTask(vf.Task[AdderData, Count, AdderConfig]):
    @classmethod
    def toolsets(cls, config: AdderConfig) -> list[vf.Toolset]:
        return [AdderToolset(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.1)
    async def called(self, trace: vf.Trace) -> float:
        return float(trace.state.calls)


class AdderTasksetConfig(vf.TasksetConfig):
    size: int = 3
    task: AdderConfig = AdderConfig()


class AdderTaskset(vf.Taskset[AdderTask, AdderTasksetConfig]):
    def load(self) -> list[AdderTask]:
        rows = [AdderData(prompt=f"{n}+1=", answer=str(n + 1)) for n in range(self.config.size)]
        return [AdderTask(row, self.config.task) for row in rows]
