"""What every environment must do. Subclass :class:`EnvironmentKit` and say how yours is made.

Example::

    class TestMine(EnvironmentKit):
        columns = {"prompt": "what", "answer": "2"}
        replies = ("1", "2")

        def make(self, tokenizer):
            return Mine(Mine.Config(), tokenizer)
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

from rlframe.errors import RolloutError
from rlframe.interfaces.data import Environment
from rlframe.requests import Completion, Episode, FinishReason, Request, Row, Sampling
from rlframe.testing.tokenizers import char_tokenizer

__all__ = ["EnvironmentKit"]

_PROMPT = (5, 6, 7)
_END = 2
_MOST_TURNS = 64
"""Turns after which an episode is taken for one that never ends."""


@dataclass
class _Policy:
    """Gives the replies in turn, each token with a log-probability of its own."""

    replies: Sequence[str]
    encode: Any
    reason: FinishReason = "stop"
    asked: list[Request] = field(default_factory=list)
    given: list[Completion] = field(default_factory=list)

    async def generate(self, request: Request) -> Completion:
        turn = len(self.asked)
        assert turn < _MOST_TURNS, f"the episode goes on after {_MOST_TURNS} turns"
        self.asked.append(request)
        await asyncio.sleep(0)
        text = self.replies[min(turn, len(self.replies) - 1)]
        ids = [*self.encode(text)] + ([_END] if self.reason == "stop" else [])
        logprobs = tuple(-0.25 - 0.01 * (10 * turn + n) for n in range(len(ids)))
        done = Completion(tuple(ids), logprobs, (turn + 3,) * len(ids), self.reason)
        self.given.append(done)
        return done


class EnvironmentKit:
    """Tests of one environment over one dataset row and a policy that gives ``replies`` in turn.

    The tokenizer has one token a letter or digit; the last reply is repeated.
    """

    columns: ClassVar[Mapping[str, Any]] = {"prompt": "what", "answer": "2"}
    replies: ClassVar[Sequence[str]] = ("1", "2")
    own_prompt: ClassVar[bool] = False
    """Whether it begins with messages of its own instead of the row's prompt."""
    leads_itself: ClassVar[bool] = False
    """Whether a program leads the episode, which may go on after a message that was too long."""

    def make(self, tokenizer: Any) -> Environment:
        """A fresh environment."""
        raise NotImplementedError(f"{type(self).__name__}.make gives no environment")

    @pytest.fixture(autouse=True)
    def _tokenizer(self, tmp_path: Path) -> Iterator[None]:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(char_tokenizer(tmp_path))
        self._started: list[Environment] = []
        yield
        for one in self._started:
            one.close()

    # --- what is checked ----------------------------------------------------------------------

    def test_what_was_sampled_is_what_is_trained_on(self) -> None:
        """Masked-in tokens, their log-probabilities and versions are the policy's, in order."""
        episode, policy = self._play()
        assert episode.segments, "an episode is at least one segment"
        trained = [
            (token, logprob, version)
            for s in episode.segments
            for token, mask, logprob, version in zip(
                s.response_ids, s.response_mask, s.logprobs, s.versions, strict=True
            )
            if mask
        ]
        sampled = [
            one
            for done in policy.given
            for one in zip(done.token_ids, done.logprobs, done.versions, strict=True)
        ]
        assert trained == sampled

    def test_what_was_not_sampled_is_masked(self) -> None:
        """Tool and environment tokens have log-prob 0 and version -1; all lists are as long."""
        episode, _ = self._play()
        for segment in episode.segments:
            count = len(segment.response_ids)
            for name in ("response_mask", "logprobs", "versions", "turn_ids"):
                assert len(getattr(segment, name)) == count, name
            assert segment.token_rewards is None or len(segment.token_rewards) == count
            for n, sampled in enumerate(segment.response_mask):
                if not sampled:
                    assert (segment.logprobs[n], segment.versions[n]) == (0.0, -1)
            assert segment.turn_ids == sorted(segment.turn_ids)

    def test_token_in_is_token_out(self) -> None:
        """Each completion stands in a segment right after the very tokens that it was asked with.

        Decoding and encoding again, or a template that drops a turn, breaks this.
        """
        episode, policy = self._play()
        for request, done in zip(policy.asked, policy.given, strict=True):
            whole = (*request.prompt_ids, *done.token_ids)
            rows = [tuple(s.prompt_ids) + tuple(s.response_ids) for s in episode.segments]
            assert any(row[: len(whole)] == whole for row in rows), "a prefix is changed"
        begins = policy.asked[0].prompt_ids[: len(_PROMPT)] == _PROMPT
        assert begins or self.own_prompt or len(episode.segments) > 1

    def test_requests_keep_what_was_stamped(self) -> None:
        """Ids, sampling and ``train`` are those of the request that the episode was given."""
        request = self._request(train=False)
        episode, policy = self._play(request)
        assert episode.request == request
        for asked in policy.asked:
            assert (asked.group_id, asked.episode_id, asked.session_id) == (3, 17, "s")
            assert asked.train == request.train
            assert asked.sampling.temperature == request.sampling.temperature
            assert asked.sampling.stop_token_ids == request.sampling.stop_token_ids

    def test_it_ends_as_it_says(self) -> None:
        """A known reason; the text of the response is there for rewards."""
        episode, _ = self._play()
        assert episode.finish_reason in get_args(FinishReason)
        assert isinstance(episode.text, str)

    @pytest.mark.parametrize("reason", ["abort", "length"])
    def test_a_response_that_was_cut_ends_it(self, reason: FinishReason) -> None:
        """After an abort, or at the length limit, the policy is not asked again."""
        episode, policy = self._play(reason=reason)
        if not (self.leads_itself and reason == "length"):
            assert len(policy.asked) == 1
            assert episode.finish_reason == reason

    def test_empty_responses(self) -> None:
        """A response of the end token alone is played like any other."""
        episode, policy = self._play(replies=("",))
        assert sum(sum(s.response_mask) for s in episode.segments) == len(policy.given)

    def test_the_same_again_alone_or_not(self) -> None:
        """Episodes have no memory of each other, one after the other or at once."""
        environment = self._make()
        alone, _ = self._play(environment=environment)
        assert self._play(environment=environment)[0] == alone

        async def together() -> list[Episode]:
            policies = [self._policy() for _ in range(4)]
            return await asyncio.gather(
                *(environment.run(self._row(), self._request(), p.generate) for p in policies)
            )

        assert asyncio.run(together()) == [alone] * 4

    def test_nothing_is_changed(self) -> None:
        """The dataset row is as it was."""
        row = self._row()
        before = copy.deepcopy(row)
        policy = self._policy()
        asyncio.run(self._make().run(row, self._request(), policy.generate))
        assert row == before

    def test_turns_are_rewarded_where_they_were_sampled(self) -> None:
        """Rewards of tokens stand at tokens that the policy sampled, and are numbers."""
        episode, _ = self._play()
        for segment in episode.segments:
            rewards = segment.token_rewards or [0.0] * len(segment.response_ids)
            for value, sampled in zip(rewards, segment.response_mask, strict=True):
                assert value == 0.0 or (sampled and math.isfinite(value))

    def test_what_it_counts_and_tells_is_plain_data(self) -> None:
        """Figures are finite numbers, the trace is JSON; what it earned is a number or parts."""
        episode, _ = self._play()
        assert all(math.isfinite(value) for value in episode.figures.values())
        json.dumps(episode.trace)
        assert episode.earned is None or self._make().gives_rewards
        earned = episode.earned
        parts = earned.values() if isinstance(earned, Mapping) else [earned or 0.0]
        assert all(math.isfinite(part) for part in parts)

    def test_the_policys_error_is_the_episodes(self) -> None:
        """An engine that fails ends the episode with its own error, at once."""

        async def fails(request: Request) -> Completion:
            raise RolloutError("the engine of the kit is gone")

        with pytest.raises(RolloutError, match="the engine of the kit is gone"):
            asyncio.run(self._make().run(self._row(), self._request(), fails))

    def test_it_can_be_cancelled_and_played_again(self) -> None:
        """An episode that is not waited for any more ends, and harms no other."""
        environment = self._make()

        async def cancelled() -> bool:
            asked = asyncio.Event()

            async def waits(request: Request) -> Completion:
                asked.set()
                await asyncio.Event().wait()
                raise AssertionError

            task = asyncio.ensure_future(environment.run(self._row(), self._request(), waits))
            await asked.wait()
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

        assert asyncio.run(cancelled())
        assert self._play(environment=environment)[0] == self._play(environment=environment)[0]

    def test_closing_twice_is_closing_once(self) -> None:
        """After an episode or before any."""
        for play in (False, True):
            environment = self._make()
            if play:
                self._play(environment=environment)
            environment.close()
            environment.close()

    # --- inside -------------------------------------------------------------------------------

    def _make(self) -> Environment:
        made = self.make(self.tokenizer)
        self._started.append(made)
        return made

    def _row(self) -> Row:
        return Row(_PROMPT, dict(self.columns), 3)

    def _request(self, train: bool = True) -> Request:
        sampling = Sampling(temperature=0.7, max_new_tokens=64, stop_token_ids=(_END,), seed=5)
        return Request(
            _PROMPT,
            sampling,
            train,
            request_id="r",
            group_id=3,
            episode_id=17,
            session_id="s",
        )

    def _policy(
        self, replies: Sequence[str] | None = None, reason: FinishReason = "stop"
    ) -> _Policy:
        def encode(text: str) -> list[int]:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
            return ids

        return _Policy(self.replies if replies is None else replies, encode, reason)

    def _play(
        self,
        request: Request | None = None,
        *,
        replies: Sequence[str] | None = None,
        reason: FinishReason = "stop",
        environment: Environment | None = None,
    ) -> tuple[Episode, _Policy]:
        policy = self._policy(replies, reason)
        played = environment or self._make()
        request = request or self._request()
        return asyncio.run(played.run(self._row(), request, policy.generate)), policy
