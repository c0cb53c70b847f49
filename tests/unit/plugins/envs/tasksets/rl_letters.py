"""A taskset of one turn: say the letter."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["LettersTaskset"]


class LettersData(vf.TaskData):
    answer: str


class LettersTask(vf.Task[LettersData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        if trace.last_reply == "fault":
            raise ValueError("no such letter")
        return 1.0 if len(trace.last_reply) < 3 else 0.0


class LettersConfig(vf.TasksetConfig):
    size: int = 4
    system: bool = False


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self) -> list[LettersTask]:
        system = "Be brief." if self.config.system else None
        return [
            LettersTask(LettersData(prompt=f"{n}:", answer="abcd"[n % 4], system_prompt=system),
                        self.config.task)
            for n in range(self.config.size)
        ]  # fmt: skip
