"""``--env my_env.py:Guess``: a plain class as an environment.

Its public methods are the tools (:mod:`.schema`), ``reset`` gives the first messages; or ``run`` is
a whole program that asks the policy through an OpenAI client. See docs/agents.md.
"""

from __future__ import annotations

import inspect
from typing import Any

from rlframe.errors import RolloutError
from rlframe.interfaces.data import Environment, Generate
from rlframe.requests import Episode, Request, Row, Segment
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.endpoint import Endpoint
from rlframe_plugins.envs.tools.play import Play, RaisedError, episode_of
from rlframe_plugins.envs.tools.pool import DiedError, HungError, Pool, Remote
from rlframe_plugins.envs.tools.schema import tools_of
from rlframe_plugins.envs.tools.session import Session
from rlframe_plugins.envs.tools.settings import Settings

__all__ = ["ToolsEnvironment"]


class _Bare:
    """An environment without tools: one question, one answer, under the limits of an episode."""


class ToolsEnvironment(Environment):
    """Plays episodes of ``user``, each object in a process of its own."""

    Config = ToolsConfig
    config: ToolsConfig
    user: type[Any] = _Bare
    given: Any = None
    """What ``user.prepare`` is called with, once, in the process that episodes are forked from."""

    @classmethod
    def adapt(cls, user: type[Any]) -> type[ToolsEnvironment]:
        """The environment of a plain class. Raises PluginError for tools without types."""
        members = {"user": user, "__doc__": user.__doc__, "gives_rewards": _rewards(user)}
        if not _is_program(user):
            tools_of(user)
        return type(user.__name__, (cls,), members)

    @classmethod
    def context_tokens(cls, config: ToolsConfig) -> int:
        """See :class:`Environment`."""
        return config.max_tokens

    def __init__(self, config: ToolsConfig | None, tokenizer: Any) -> None:
        super().__init__(config or ToolsConfig(), tokenizer)
        name = self.user.__name__
        tools = [] if _is_program(self.user) else tools_of(self.user)
        self._settings = Settings(self.config, tokenizer, tools, name)
        self._pool = Pool(self.user, self.config.processes, self.given)
        self._endpoint = Endpoint()

    async def run(self, row: Row, request: Request, generate: Generate) -> Episode:
        """See :class:`Environment`; again from its beginning where the process died."""
        fault = ""
        for _ in range(self.config.retries + 1):
            try:
                async with self._pool.remote() as remote:
                    if _is_program(self.user):
                        return await self._program(remote, row, request, generate)
                    play = Play(self._settings, remote, row, request, generate)
                    return await self._guarded(play, request)
            except DiedError as error:
                fault = str(error)
        return _failed(request, f"env {self._settings.name}: {fault}", "env_deaths")

    def close(self) -> None:
        """End all processes and the endpoint."""
        self._endpoint.close()
        self._pool.close()

    async def _guarded(self, play: Play, request: Request) -> Episode:
        """An episode whose own methods may raise."""
        can_step = hasattr(self.user, "step")
        try:
            return await play.run(can_step=can_step, rewards=_rewards(self.user))
        except RaisedError as error:
            if self.config.on_error == "fail":
                raise RolloutError(f"env {error}. {_ADVICE}") from error
            if self.config.on_error == "skip" or play.dialogue is None:
                return _failed(request, f"env {error}", "env_errors")
            play.figures["env_errors"] += 1
            dialogues = [play.dialogue]
            return episode_of(request, dialogues, "stop", play.figures, play.trace, 0.0)

    async def _program(
        self, remote: Remote, row: Row, request: Request, generate: Generate
    ) -> Episode:
        """An episode that the user's own program leads."""
        session = Session(self._settings, request, generate)
        url, key = await self._endpoint.open(session)
        late = False
        reply: dict[str, Any] = {}
        try:
            reply = await remote.ask(
                "run",
                self.config.run_timeout_s,
                columns=dict(row.columns),
                url=url,
                key=key,
                seed=row.group_id,
            )
        except HungError:
            late = True
        finally:
            self._endpoint.shut(key)
            session.close()
        if session.fault is not None:
            raise session.fault
        return await self._judged(remote, row, request, session, reply, late)

    async def _judged(
        self,
        remote: Remote,
        row: Row,
        request: Request,
        session: Session,
        reply: dict[str, Any],
        late: bool,
    ) -> Episode:
        """The episode of a program that has ended, and what it has earned."""
        finish, figures, earned = session.ended or "stop", session.figures, reply.get("value")
        command = "run"
        if late:
            finish, earned = "length", 0.0
            figures["env_timeouts"] += 1
        elif "error" in reply and session.ended is not None:
            reply, earned = {}, 0.0
        elif earned is None and "error" not in reply and hasattr(self.user, "reward"):
            command, reply = "reward", await self._reward(remote)
            earned = reply.get("value")
        if "error" in reply:
            raised = f"env {self._settings.name}.{command} raised {reply['error']}"
            raised += reply.get("where", "")
            figures["env_errors"] += 1
            if self.config.on_error == "fail":
                raise RolloutError(f"{raised}. {_ADVICE}")
            if self.config.on_error == "skip":
                return _failed(request, raised, "env_errors")
            earned = 0.0
        if not session.dialogues:
            prompt = Segment(list(request.prompt_ids), [], [], [], [], [])
            return Episode(request, [prompt], finish, earned=earned, figures=dict(figures))
        return episode_of(request, session.dialogues, finish, figures, session.trace, earned)

    async def _reward(self, remote: Remote) -> dict[str, Any]:
        """What a program's class says it has earned; one that takes too long has raised."""
        limit = self.config.tool_timeout_s
        try:
            reply = await remote.ask("reward", limit, seconds=limit)
        except HungError as error:
            return {"error": str(error)}
        return {"error": f"took more than {limit:g} s"} if reply.get("late") else reply


_ADVICE = "env.on_error=zero gives such episodes a reward of 0, skip leaves them out"


def _is_program(user: type[Any]) -> bool:
    return inspect.isfunction(getattr(user, "run", None))


def _rewards(user: type[Any]) -> bool:
    """Whether a class has a reward of its own: a method, or an attribute that a method sets."""
    if hasattr(user, "reward") or "reward" in getattr(user, "__annotations__", {}):
        return True
    if _is_program(user):
        return user.run.__annotations__.get("return", float) not in (None, "None")
    functions = [f for base in user.__mro__ for f in vars(base).values() if inspect.isfunction(f)]
    return any("reward" in function.__code__.co_names for function in functions)


def _failed(request: Request, fault: str, figure: str) -> Episode:
    """An episode that could not be played: left out, and counted."""
    nothing = Segment(list(request.prompt_ids), [], [], [], [], [])
    return Episode(request, [nothing], "error", fault=fault, figures={figure: 1.0})
