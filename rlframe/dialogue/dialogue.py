"""One conversation with the policy: its exact tokens, and the training rows that they make."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Sequence
from typing import Literal

from rlframe.dialogue.forms import Form, Message
from rlframe.errors import RolloutError
from rlframe.requests import Completion, Request, Segment

__all__ = ["Dialogue", "RewrittenError"]


class RewrittenError(RolloutError):
    """The chat template writes earlier messages otherwise, and that is not to be bridged."""


class Dialogue:
    """The context of turn k+1 is the tokens of turn k and those of the new messages, no others.

    Where the template writes history otherwise (strips thinking, merges messages), the context is
    encoded anew and a new segment begins with it, or, with ``on_rewrite='error'``, RewrittenError
    is raised. ``ends`` are tokens that end a message and are no part of its text.
    """

    def __init__(
        self,
        form: Form,
        messages: Sequence[Message],
        *,
        ends: Collection[int] = (),
        on_rewrite: Literal["segment", "error"] = "segment",
        prompt_ids: Sequence[int] | None = None,
    ) -> None:
        self.form = form
        self.messages: list[Message] = [dict(message) for message in messages]
        self.segments: list[Segment] = []
        self.rewrites = 0
        self.turns = 0
        self.answer = ""
        """What the policy said last, without special tokens."""
        self._ends, self._on_rewrite = frozenset(ends), on_rewrite
        self._text = form.prompt(self.messages) if prompt_ids is None else ""
        self._context: list[int] = []
        self._pending = form.encode(self._text) if prompt_ids is None else list(prompt_ids)
        self._segment: Segment | None = None
        self._end = ""
        self.marks: dict[int, Dialogue] = {}
        """Copies of this conversation right after a message of the model, by messages."""

    @property
    def context(self) -> tuple[int, ...]:
        """The tokens that the next turn is asked with."""
        return (*self._context, *self._pending)

    def request(self, request: Request, room: int = 0) -> Request:
        """The next turn's request, for at most ``room`` new tokens where that is above 0.

        Its sampling is the episode's, but for the seed, which each turn after the first has of its
        own.
        """
        from rlframe.collecting.collector import episode_seed

        sampling, turn = request.sampling, self.turns
        if room > 0:
            most = min(sampling.max_new_tokens, room)
            least = min(sampling.min_new_tokens, most)
            sampling = dataclasses.replace(sampling, max_new_tokens=most, min_new_tokens=least)
        if turn and sampling.seed is not None:
            seed = episode_seed(sampling.seed, len(self.context), turn)
            sampling = dataclasses.replace(sampling, seed=seed)
        name = f"{request.request_id}-t{turn}" if turn else request.request_id
        return dataclasses.replace(
            request, prompt_ids=self.context, sampling=sampling, request_id=name
        )

    def heard(self, done: Completion) -> str:
        """Take what the policy said; its text, with special tokens but the last that ended it."""
        segment = self._open()
        count = len(done.token_ids)
        segment.response_ids += done.token_ids
        segment.response_mask += [True] * count
        segment.logprobs += done.logprobs
        segment.versions += done.versions
        segment.turn_ids += [self.turns] * count
        if segment.token_rewards is not None:
            segment.token_rewards += [0.0] * count
        self._context += done.token_ids
        ids, self._end = list(done.token_ids), ""
        if ids and ids[-1] in self._ends:
            self._end = self.form.decode([ids.pop()])
        said = self.form.decode(ids)
        self.answer = self.form.decode(ids, special=False)
        self._text += said
        self.messages.append({"role": "assistant", "content": said})
        self.turns += 1
        return said

    def called(self, content: str, tool_calls: Sequence[Message]) -> None:
        """Note the calls in the last message, for templates that want them apart."""
        calls = {"content": content, "tool_calls": [dict(call) for call in tool_calls]}
        self.messages[-1] = {**self.messages[-1], "raw_calls": calls}

    def say(self, new: Sequence[Message]) -> None:
        """Add messages of others. Raises RewrittenError, and ModelError: the template refuses."""
        follow = self.form.follow(self._text, self.messages, new)
        self.messages += [dict(message) for message in new]
        if follow.rewritten:
            self._rewrite(follow.whole, follow.rewritten)
            return
        added = follow.added
        rest = added.lstrip() if added.lstrip().startswith(self._end) else added
        self._text += added
        self._pending = self.form.encode(rest.removeprefix(self._end) if self._end else added)

    def reward(self, value: float) -> None:
        """Give the turn that was heard last a reward of its own, at its last sampled token."""
        segment = self._segment
        if segment is None or not any(segment.response_mask):
            return
        if segment.token_rewards is None:
            segment.token_rewards = [0.0] * len(segment.response_ids)
        last = max(n for n, sampled in enumerate(segment.response_mask) if sampled)
        segment.token_rewards[last] += value

    def branch(self) -> Dialogue:
        """A conversation that goes on from here on its own, in segments of its own."""
        twin = copy.copy(self)
        twin.messages, twin.segments = list(self.messages), []
        twin._context, twin._pending = [], list(self.context)
        twin._segment, twin.marks = None, {}
        return twin

    def mark(self) -> None:
        """Remember this place, so that :meth:`branch` can go on from it later."""
        self.marks[len(self.messages)] = self.branch()

    def all_segments(self) -> list[Segment]:
        """The training rows; one without a response where nothing was heard."""
        if not self.segments:
            self._open()
        return self.segments

    def _open(self) -> Segment:
        """The segment that the next tokens go to, what is pending written down."""
        if self._segment is None:
            prompt = [*self._context, *self._pending]
            self._segment = Segment(prompt, [], [], [], [], [])
            self.segments.append(self._segment)
        else:
            count = len(self._pending)
            self._segment.response_ids += self._pending
            self._segment.response_mask += [False] * count
            self._segment.logprobs += [0.0] * count
            self._segment.versions += [-1] * count
            self._segment.turn_ids += [max(self.turns - 1, 0)] * count
            if self._segment.token_rewards is not None:
                self._segment.token_rewards += [0.0] * count
        self._context += self._pending
        self._pending = []
        return self._segment

    def _rewrite(self, whole: str, why: str) -> None:
        if self._on_rewrite == "error":
            raise RewrittenError(
                f"the chat template rewrites history: {why}. Turns would be trained on tokens that "
                "they were not sampled after: env.on_rewrite=segment starts a new training row "
                "there, or take a template that keeps what was said"
            )
        self.rewrites += 1
        self._text, self._context = whole, []
        self._pending, self._segment = self.form.encode(whole), None
