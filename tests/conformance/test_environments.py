"""EnvironmentKit over every registered environment; and the kit notices common mistakes."""

from __future__ import annotations

import dataclasses

import pytest

from rlframe.host.host import PluginHost
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import resolve
from rlframe.interfaces.data import Environment
from rlframe.requests import Episode, Segment
from rlframe.testing.environment_kit import EnvironmentKit
from rlframe_plugins.envs.tools.config import ToolsConfig
from rlframe_plugins.envs.tools.environment import ToolsEnvironment
from rlframe_templates.envs import guess
from tests.unit.plugins.envs import programs, users

HOST = PluginHost().load()
ELSEWHERE = {"verifiers": "needs a taskset: test_verifiers_played.py has the kit over some"}


class TestRegistered(EnvironmentKit):
    @pytest.fixture(autouse=True, params=sorted(HOST.components("environment")))
    def _choose(self, request):
        hint = missing_hint(HOST.find("environment", request.param))
        if hint or request.param in ELSEWHERE:
            pytest.skip(hint or ELSEWHERE[request.param])
        self.kind = resolve(HOST, "environment", request.param).value

    def make(self, tokenizer) -> Environment:
        config = self.kind.Config() if hasattr(self.kind, "Config") else None
        return self.kind(config, tokenizer)


class Plain(EnvironmentKit):
    """Classes that the adapter plays, in plain text: the tokenizer of the kit has no template."""

    own_prompt = True

    def make(self, tokenizer) -> Environment:
        config = ToolsConfig(template="plain", **self.options)
        return ToolsEnvironment.adapt(self.user)(config, tokenizer)


class TestTools(Plain):
    user = guess.Guess
    options = {"tool_parser": f"{guess.__name__}:DigitParser", "max_turns": 3}


class TestSteps(Plain):
    user = users.Talk
    options = {"max_turns": 2}


class TestPrograms(Plain):
    user = programs.Chatter
    leads_itself = True
    options = {"max_turns": 3, "on_error": "zero"}


class TwoTurns(Environment):
    """Says "again" after the first answer."""

    keep_mask = True
    same_tokens = True
    until_cut = True

    async def run(self, row, request, generate):
        hint = self.tokenizer.encode("again", add_special_tokens=False)
        segment = Segment(list(request.prompt_ids), [], [], [], [], [])
        for turn in range(2):
            ids = tuple(segment.prompt_ids + segment.response_ids)
            done = await generate(dataclasses.replace(request, prompt_ids=ids))
            self.add(segment, done.token_ids, done.logprobs, done.versions, True, turn)
            if turn == 0 and (done.finish_reason == "stop" or not self.until_cut):
                blank = [0.0] * len(hint), [-1] * len(hint)
                self.add(segment, hint, *blank, not self.keep_mask, turn)
            elif self.until_cut:
                break
        if not self.same_tokens:
            text = self.tokenizer.decode(segment.response_ids, skip_special_tokens=True)
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            segment.response_ids[: len(ids)] = ids
        return Episode(request, [segment], done.finish_reason, "x")

    @staticmethod
    def add(segment, ids, logprobs, versions, mask, turn):
        segment.response_ids += list(ids)
        segment.logprobs += list(logprobs)
        segment.versions += list(versions)
        segment.response_mask += [mask] * len(ids)
        segment.turn_ids += [turn] * len(ids)


class TestTwoTurns(EnvironmentKit):
    def make(self, tokenizer) -> Environment:
        return TwoTurns(None, tokenizer)


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        ("keep_mask", "test_what_was_sampled_is_what_is_trained_on"),
        ("same_tokens", "test_token_in_is_token_out"),
        ("until_cut", "test_a_response_that_was_cut_ends_it"),
    ],
)
def test_the_kit_notices_a_broken_environment(mistake, check, tmp_path):
    class Kit(EnvironmentKit):
        def make(self, tokenizer) -> Environment:
            broken = TwoTurns(None, tokenizer)
            setattr(broken, mistake, False)
            return broken

    kit = Kit()
    from transformers import AutoTokenizer

    from rlframe.testing.tokenizers import char_tokenizer

    kit.tokenizer = AutoTokenizer.from_pretrained(char_tokenizer(tmp_path))
    kit._started = []
    arguments = ["abort"] if "cut" in check else []
    with pytest.raises(AssertionError):
        getattr(kit, check)(*arguments)
