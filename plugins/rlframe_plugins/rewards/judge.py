"""A language model as the judge, behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlframe import Episode, RewardError, Row
from rlframe.config import check_range
from rlframe.data import nested_paths, nested_value
from rlframe.interfaces.data import Reward, RewardValue
from rlframe.rewards.values import NotAReward, as_number, shown
from rlframe_plugins.rewards.endpoint import Endpoint, ServiceConfig, check_url
from rlframe_plugins.rewards.replies import KnownReplies

__all__ = ["JudgeReward"]

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}\s]+)\}")
_OWN = ("prompt", "response", "finish_reason")
_TEMPLATE = """Grade the response to the task on a scale from {lowest} to {highest}.

[Task]
{prompt}

[Response]
{response}

Think briefly, then end with a line "Score: N"."""


class JudgeReward(Reward):
    """The judge's score, from ``lowest`` to ``highest``, as a reward from 0 to 1.

    ``template`` is the question: ``{prompt}``, ``{response}``, ``{finish_reason}``, any column
    (``{reward_model.ground_truth}``), ``{lowest}`` and ``{highest}``; braces are doubled. Equal
    questions are asked once.
    """

    limits_itself = True

    @dataclass(frozen=True)
    class Config(ServiceConfig):
        """Options of the judge."""

        base_url: str = ""
        """Address before /chat/completions, as in http://host:8000/v1."""
        model: str = ""
        """The model's name at that address."""
        template: str = _TEMPLATE
        """The question, with fields in braces."""
        system: str = ""
        """A system message; empty sends none."""
        pattern: str = r"(?i)score\W*?(-?\d+(?:\.\d+)?)"
        """Regular expression whose first group, at its last match, is the score."""
        json_key: str = ""
        """Read this key of a JSON object in the reply instead of the pattern."""
        lowest: float = 0.0
        """Score that becomes 0."""
        highest: float = 10.0
        """Score that becomes 1, above lowest; a score outside of both cannot be read."""
        otherwise: float | None = None
        """Reward where no score can be read, 0 to 1; null makes it an error."""
        temperature: float = 0.0
        """Sampling temperature of the judge, at least 0."""
        max_tokens: int = 512
        """Longest reply, tokens, at least 1."""
        extra: dict[str, Any] = field(default_factory=dict)
        """Further fields of the request, as the server knows them."""
        cache: str = ""
        """Folder that keeps replies from run to run; empty keeps them in memory only."""
        cache_size: int = 10_000
        """Replies in memory, at least 0."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            super().__post_init__()
            check_url(self.base_url, "base_url")
            check_range(self, "otherwise", 0, 1)
            check_range(self, "temperature", 0)
            check_range(self, "max_tokens", 1)
            check_range(self, "cache_size", 0)
            check_range(self, "highest", above=self.lowest)
            if not self.model:
                raise ValueError("model must name the judge's model")
            if "{response" not in self.template:
                raise ValueError("template must have the field {response}")
            if re.compile(self.pattern).groups < 1:
                raise ValueError("pattern needs a group, as in 'Score: (.*)'")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        url = f"{config.base_url.rstrip('/')}/chat/completions"
        self._endpoint = Endpoint("judge", url, config)
        self._known = KnownReplies(config.cache, config.cache_size)
        self._asked: dict[tuple[int, str], asyncio.Future[str]] = {}

    def check(self, columns: Sequence[str]) -> None:
        """Raises RewardError when a column of the template, or the token, is not there."""
        known = {
            *_OWN,
            "lowest",
            "highest",
            *columns,
            *(name.partition(".")[0] for name in columns),
        }
        for name in self._fields():
            if name not in known and name.partition(".")[0] not in known:
                raise RewardError(_missing(name, sorted(columns)))
        self._endpoint.check()

    async def score(self, row: Row, episodes: Sequence[Episode]) -> list[RewardValue]:
        """See :class:`Reward`; an episode whose score failed has the error in its place."""
        questions = [self._question(row, episode) for episode in episodes]
        return list(await asyncio.gather(*(self._one(question) for question in questions)))

    async def _one(self, question: dict[str, Any]) -> RewardValue:
        try:
            return self._value(await self._reply(question))
        except RewardError as error:
            return error

    async def _reply(self, question: dict[str, Any]) -> str:
        """What the judge says; equal questions that are asked together are one."""
        key = self._known.key([self._endpoint.url, question])
        known = self._known.get(key)
        if known is not None:
            return known
        place = (id(asyncio.get_running_loop()), key)
        if place not in self._asked:
            asking = asyncio.ensure_future(self._ask(question, key))
            self._asked[place] = asking

            def over(asking: asyncio.Future[str]) -> None:
                del self._asked[place]
                if not asking.cancelled():
                    asking.exception()  # seen, also where nobody waits for it any more

            asking.add_done_callback(over)
        return await asyncio.shield(self._asked[place])

    async def _ask(self, question: dict[str, Any], key: str) -> str:
        reply = await self._endpoint.post(question)
        try:
            text = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._endpoint.error(
                f"answered no chat completion: {shown(reply, 200)}"
            ) from error
        if not isinstance(text, str):
            raise self._endpoint.error(f"answered no text: {shown(reply, 200)}")
        self._known.put(key, text)
        return text

    def _question(self, row: Row, episode: Episode) -> dict[str, Any]:
        config = self.config
        values = {
            **row.columns,
            "prompt": row.columns.get("prompt"),
            "response": episode.text,
            "finish_reason": episode.finish_reason,
            "lowest": f"{config.lowest:g}",
            "highest": f"{config.highest:g}",
        }
        system = [{"role": "system", "content": config.system}] if config.system else []
        return {
            "model": config.model,
            "messages": [*system, {"role": "user", "content": self._filled(values)}],
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            **config.extra,
        }

    def _filled(self, values: Mapping[str, Any]) -> str:
        """The template; what is put in is not looked at again."""

        def put(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0][0]
            try:
                return _text(nested_value(values, match[1]))
            except KeyError:
                raise RewardError(_missing(match[1], nested_paths(values))) from None

        return _FIELD.sub(put, self.config.template)

    def _fields(self) -> list[str]:
        return [name for name in _FIELD.findall(self.config.template) if name]

    def _value(self, reply: str) -> RewardValue:
        config = self.config
        try:
            score = self._read(reply)
        except NotAReward as error:
            if config.otherwise is not None:
                return float(config.otherwise)
            raise self._endpoint.error(
                f"gave no score from {config.lowest:g} to {config.highest:g} ({error}): "
                f"{shown(reply, 200)}. The judge's otherwise gives such a response a reward"
            ) from error
        return (score - float(config.lowest)) / (float(config.highest) - float(config.lowest))

    def _read(self, reply: str) -> float:
        """The score in a reply. Raises NotAReward."""
        if self.config.json_key:
            score = as_number(_object(reply).get(self.config.json_key))
        else:
            found = list(re.finditer(self.config.pattern, reply))
            if not found:
                raise NotAReward("the pattern is not found")
            try:
                score = float(found[-1][1])
            except (TypeError, ValueError) as error:
                raise NotAReward(f"{found[-1][1]!r} is no number") from error
        if not self.config.lowest <= score <= self.config.highest:
            raise NotAReward(f"{score:g} is outside")
        return score


def _object(reply: str) -> Mapping[str, Any]:
    """The JSON object in a reply, fenced or among other words. Raises NotAReward."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        value = json.loads(reply[start : end + 1])
    except ValueError as error:
        raise NotAReward("it holds no JSON object") from error
    if not isinstance(value, Mapping):
        raise NotAReward("it holds no JSON object")
    return value


def _text(value: Any) -> str:
    """Text as it is, a chat as its turns, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(v, Mapping) and "content" in v for v in value):
        return "\n".join(f"{turn.get('role', '')}: {_text(turn['content'])}" for turn in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _missing(name: str, known: Sequence[str]) -> str:
    return (
        f"reward 'judge': the template has the field '{{{name}}}', which is no column; there are: "
        f"{', '.join(known) or 'none'}. Double the braces of other text"
    )
