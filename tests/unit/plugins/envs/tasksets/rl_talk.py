"""An environment of its own: it answers the policy twice, and asks a judge where it is told to."""

from __future__ import annotations

import verifiers.v1 as vf
from rl_letters import LettersTask, LettersTaskset

__all__ = ["TalkEnv", "TalkTaskset"]


class TalkTaskset(LettersTaskset):
    pass


class TalkConfig(vf.EnvConfig):
    pupil: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()
    judged: bool = False


class TalkEnv(vf.Env[TalkConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.judge.trainable = False

    async def run(self, task: LettersTask, agents: vf.Agents) -> None:
        async with agents.pupil.interaction(task) as talk:
            await talk.turn()
            await talk.turn("are you sure?")
        if self.config.judged:
            await agents.judge.run(task)
