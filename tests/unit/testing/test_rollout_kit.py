"""The rollout kit fails where an engine is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from rlframe.errors import RolloutError
from rlframe.testing.models import tiny_model
from rlframe.testing.rollout_kit import RolloutKit
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.testing.tokenizers import char_tokenizer
from rlframe_plugins.rollouts.torch.engine import TorchRollout


class Kit(RolloutKit):
    rollout = "broken"
    __test__ = False


class ForgetsTemperature(TorchRollout):
    async def generate(self, request):
        got = await super().generate(request)
        heat = request.sampling.temperature or 1.0
        return dataclasses.replace(got, logprobs=tuple(lp * heat for lp in got.logprobs))


class KeepsTheFirstWeights(TorchRollout):
    first = None

    def load(self, version, tensors):
        self.first = self.first or {name: t.clone() for name, t in tensors.items()}
        super().load(version, self.first)


class KeepsTheFirstHead(TorchRollout):
    head = None

    def load(self, version, tensors):
        super().load(version, tensors)
        if self.head is None:
            self.head = self._decoder.weights.head.clone()
        self._decoder.use(dataclasses.replace(self._decoder.weights, head=self.head))


class CutsTheStop(TorchRollout):
    async def generate(self, request):
        got = await super().generate(request)
        if got.finish_reason != "stop":
            return got
        return dataclasses.replace(
            got,
            token_ids=got.token_ids[:-1],
            logprobs=got.logprobs[:-1],
            versions=got.versions[:-1],
        )


class StampsTheLastVersion(TorchRollout):
    async def generate(self, request):
        version = self.version
        got = await super().generate(request)
        return dataclasses.replace(got, versions=(version,) * len(got.versions))


class OneSeedForAll(TorchRollout):
    def _handle(self, request):
        return dataclasses.replace(super()._handle(request), seed=5)


class TruncatesAnEmptyPrompt(TorchRollout):
    async def generate(self, request):
        return await super().generate(
            dataclasses.replace(request, prompt_ids=request.prompt_ids[:60] or (1,))
        )


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (ForgetsTemperature, "test_logprobs_are_those_of_the_sampled_distribution"),
        (KeepsTheFirstWeights, "test_the_next_version_samples_from_the_new_weights"),
        (KeepsTheFirstHead, "test_the_next_version_samples_from_the_new_weights"),
        (CutsTheStop, "test_stop_ids_end_a_response_and_stay_in_it"),
        (StampsTheLastVersion, "test_a_load_in_flight_marks_tokens_with_their_version"),
        (OneSeedForAll, "test_samples_of_one_prompt_differ"),
        (TruncatesAnEmptyPrompt, "test_a_wrong_prompt_is_refused_and_hurts_no_other"),
    ],
)
def test_a_broken_engine_fails(broken, check, tmp_path):
    path = char_tokenizer(tiny_model(tmp_path))
    kit, reference = Kit(), RolloutReference(path)
    engine = kit.make(broken, path)
    engine.load(3, reference.tensors())
    arguments = {"engine": engine, "reference": reference, "prompt": (), "message": "empty"}
    method = getattr(kit, check)
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    with pytest.raises((AssertionError, RolloutError)):
        method(**{name: arguments[name] for name in names})
