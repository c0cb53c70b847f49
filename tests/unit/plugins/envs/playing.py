"""A policy that says what it is told, and an environment to play it in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rlframe.requests import Completion, Request, Row, Sampling
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.environment import ToolsEnvironment


@dataclass
class Policy:
    tokenizer: Any
    replies: list[str]
    reason: str = "stop"
    asked: list[Request] = field(default_factory=list)
    given: list[Completion] = field(default_factory=list)

    async def __call__(self, request: Request) -> Completion:
        text = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append(request)
        await asyncio.sleep(0)
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        ids += [self.tokenizer.eos_token_id]
        turn = len(self.given)
        done = Completion(
            tuple(ids), tuple(-0.01 * n - turn for n in range(len(ids))), (turn,) * len(ids),
            self.reason,
        )  # fmt: skip
        self.given.append(done)
        return done


def environment(user, tokenizer, **options):
    options = {"tool_parser": "llama", "describe": False, **options}
    return ToolsEnvironment.adapt(user)(ToolsConfig(**options), tokenizer)


def row(**columns):
    return Row((5, 6), {"prompt": "what", **columns}, 3)


def request(**sampling):
    return Request((5, 6), Sampling(seed=1, **{"max_new_tokens": 200, **sampling}),
                   request_id="r", group_id=3, episode_id=7, session_id="s")  # fmt: skip


def play(env, policy, where=None, asked=None):
    return asyncio.run(env.run(where or row(answer="5"), asked or request(), policy))
