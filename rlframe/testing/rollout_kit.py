"""A conformance kit for rollout engines: subclass :class:`RolloutKit` with one name in it.

    class TestMine(RolloutKit):
        rollout = "mine"

The engine runs a random model of 10,000 parameters and is compared with a plain forward pass. What
an engine does not claim in ``capabilities`` is skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlframe.config import ModelConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.models import VOCABULARY, tiny_model
from rlframe.testing.rollout_control import RolloutControl
from rlframe.testing.rollout_reference import END, RolloutReference, until_end
from rlframe.testing.tokenizers import char_tokenizer

__all__ = ["RolloutKit"]

PROMPTS = ((5,), (7, 8, 9), (30, 4, 18, 22, 11, 6, 35, 3, 27), (7, 8, 9))
SAMPLINGS = (
    Sampling(temperature=1.0, max_new_tokens=6),
    Sampling(temperature=0.6, max_new_tokens=9),
    Sampling(temperature=0.0, max_new_tokens=7),
    Sampling(temperature=1.3, top_k=5, max_new_tokens=9),
    Sampling(temperature=0.9, top_p=0.7, max_new_tokens=9),
    Sampling(temperature=1.1, top_k=20, top_p=0.8, max_new_tokens=12),
)


class RolloutKit(RolloutControl):
    """Checks that every rollout engine must pass."""

    rollout: ClassVar[str]
    """Registered name, or ``pkg.mod:Class``."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the engine's Config that differ from the defaults."""
    kind: ClassVar[str] = "qwen2"
    """Model: "qwen2" (tied, biases) or "llama"."""
    tolerance: ClassVar[float] = 1e-4
    positions: ClassVar[int] = 64
    """Of the model; more where ``lasting`` needs them."""

    @pytest.fixture
    def target(self) -> type[RolloutEngine]:
        """The class under test."""
        from rlframe.host.host import current_host
        from rlframe.host.resolve import resolve

        found: type[RolloutEngine] = resolve(current_host(), "rollout", self.rollout).value
        if "replay" in found.capabilities:
            pytest.skip(f"rollout '{self.rollout}' answers from a record and samples nothing")
        return found

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A random model and a tokenizer of one character a token."""
        made = tiny_model(tmp_path / "model", self.kind, max_position_embeddings=self.positions)
        return char_tokenizer(made)

    @pytest.fixture
    def reference(self, path: Path) -> RolloutReference:
        """The same model, whose parameters the engine loads."""
        return RolloutReference(path)

    @pytest.fixture
    def empty(self, target: type[RolloutEngine], path: Path) -> Iterator[RolloutEngine]:
        """The engine before its first ``load``."""
        engine = self.make(target, path)
        yield engine
        engine.close()

    @pytest.fixture
    def engine(self, empty: RolloutEngine, reference: RolloutReference) -> RolloutEngine:
        """The engine with the reference's weights as version 3."""
        empty.load(3, reference.tensors())
        return empty

    def make(self, target: type[RolloutEngine], path: Path, **options: Any) -> RolloutEngine:
        """An engine with this kit's options and more."""
        config = target.Config(**{**self.options, **options})  # type: ignore[attr-defined]
        return target(config, RolloutSpec(str(path), ModelConfig(path=str(path))))

    def claims(self, engine: RolloutEngine, capability: str) -> None:
        """Skip, and say so, what an engine does not claim."""
        if capability not in engine.capabilities:
            pytest.skip(f"rollout '{self.rollout}' does not claim '{capability}'")

    def check(
        self, reference: RolloutReference, request: Request, got: Completion, version: int
    ) -> None:
        """Ids, log-probabilities and versions agree with each other and the model."""
        count = len(got.token_ids)
        assert len(got.logprobs) == len(got.versions) == count
        assert set(got.versions) <= {version}
        assert all(0 <= token < VOCABULARY for token in got.token_ids)
        assert got.finish_reason in ("stop", "length", "abort")
        if count:
            expected = reference.logprobs(request.prompt_ids, got, request.sampling).tolist()
            assert list(got.logprobs) == pytest.approx(expected, abs=self.tolerance)

    # --- what is sampled ------------------------------------------------------------------------

    def test_logprobs_are_those_of_the_sampled_distribution(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Prompts and settings of every kind together, each equal to the plain model."""
        requests = [
            Request(prompt, sampling, group_id=i, episode_id=10 * i + j)
            for i, prompt in enumerate(PROMPTS)
            for j, sampling in enumerate(SAMPLINGS)
        ]
        for request, got in zip(requests, run(engine, *requests), strict=True):
            self.check(reference, request, got, version=3)

    def test_min_p_drops_what_is_unlikely(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Alone and after top-k."""
        self.claims(engine, "min-p")
        for sampling in (Sampling(min_p=0.2), Sampling(min_p=0.1, top_k=8, temperature=1.4)):
            request = Request(PROMPTS[1], dataclasses.replace(sampling, max_new_tokens=12))
            self.check(reference, request, run(engine, request)[0], version=3)

    def test_greedy_takes_the_most_probable(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Token by token, in company of sampled requests, up to the model's end token."""
        greedy = [Request(p, Sampling(temperature=0, max_new_tokens=10)) for p in PROMPTS]
        company = [Request(p, Sampling(max_new_tokens=4)) for p in PROMPTS]
        for request, got in zip(greedy, run(engine, *greedy, *company), strict=False):
            expected = until_end(reference.greedy(request.prompt_ids, 10))
            assert list(got.token_ids) == expected

    def test_tokens_are_drawn_with_their_probabilities(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """600 first tokens: every frequency within five standard deviations."""
        count = 600
        sampling = Sampling(temperature=1.2, max_new_tokens=1)
        requests = [Request((7, 8, 9), sampling, group_id=0, episode_id=i) for i in range(count)]
        drawn = [got.token_ids[0] for got in run(engine, *requests)]
        shares = (reference.logits((7, 8, 9), [0])[0] / 1.2).softmax(0).tolist()
        for token, share in enumerate(shares):
            spread = 5 * (share * (1 - share) * count) ** 0.5 + 1
            assert abs(drawn.count(token) - share * count) < spread

    # --- when it ends ---------------------------------------------------------------------------

    def test_length_ends_a_response(self, engine: RolloutEngine) -> None:
        """At exactly ``max_new_tokens``, unless the end token comes."""
        for limit in (1, 2, 11):
            sampling = Sampling(max_new_tokens=limit, min_new_tokens=limit)
            (got,) = run(engine, Request(PROMPTS[1], sampling))
            assert len(got.token_ids) == limit

    def test_stop_ids_end_a_response_and_stay_in_it(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Any of several, the model's own among them."""
        line = until_end(reference.greedy(PROMPTS[2], 12))
        stops = (line[3], line[5])
        end = min(line.index(stop) for stop in stops) + 1
        sampling = Sampling(temperature=0, max_new_tokens=12, stop_token_ids=stops)
        (got,) = run(engine, Request(PROMPTS[2], sampling))
        assert list(got.token_ids) == line[:end]
        assert got.finish_reason == "stop"
        many = [Request(PROMPTS[0], Sampling(temperature=2.0, max_new_tokens=30))] * 40
        ends = run(engine, *many)
        assert any(END in got.token_ids for got in ends), "the model never ends: change the kit"
        for got in ends:
            assert (got.finish_reason == "stop") == (got.token_ids[-1] == END)
            assert END not in got.token_ids[:-1]

    def test_stop_strings_end_a_response_with_all_its_tokens(
        self, engine: RolloutEngine, reference: RolloutReference, path: Path
    ) -> None:
        """The text is whole and ends with the string; tokens and log-probabilities are kept."""
        self.claims(engine, "stop-strings")
        from transformers import AutoTokenizer

        line = until_end(reference.greedy(PROMPTS[2], 12))
        text = AutoTokenizer.from_pretrained(path).decode(line)
        stop = text[3:6]
        request = Request(
            PROMPTS[2], Sampling(temperature=0, max_new_tokens=12, stop=("#none#", stop))
        )
        (got,) = run(engine, request)
        assert list(got.token_ids) == line[: text.index(stop) + len(stop)]
        assert got.finish_reason == "stop"
        self.check(reference, request, got, version=3)

    def test_no_end_before_min_new_tokens(self, engine: RolloutEngine) -> None:
        """Stop ids are not drawn before; afterwards they end as ever."""
        stops = tuple(range(3, VOCABULARY - 4))
        sampling = Sampling(max_new_tokens=20, min_new_tokens=6, stop_token_ids=stops)
        for got in run(engine, *[Request(PROMPTS[1], sampling)] * 20):
            assert len(got.token_ids) >= 6
            assert not set(got.token_ids[:5]) & {*stops, END}
            assert (got.token_ids[-1] in {*stops, END}) == (got.finish_reason == "stop")

    def test_no_stop_string_before_min_new_tokens(
        self, engine: RolloutEngine, reference: RolloutReference, path: Path
    ) -> None:
        """One that is complete before has no effect later."""
        self.claims(engine, "stop-strings")
        from transformers import AutoTokenizer

        line = until_end(reference.greedy(PROMPTS[2], 8))
        text = AutoTokenizer.from_pretrained(path).decode(line)
        sampling = Sampling(
            temperature=0, max_new_tokens=len(line), min_new_tokens=3, stop=(text[:2],)
        )
        (got,) = run(engine, Request(PROMPTS[2], sampling))
        again = text.find(text[:2], 1)
        assert len(got.token_ids) == (len(line) if again < 0 else again + 2)

    # --- seeds ----------------------------------------------------------------------------------

    def test_samples_of_one_prompt_differ(self, engine: RolloutEngine) -> None:
        """With episodes of one group, with seeds, and with neither."""
        sampling = Sampling(max_new_tokens=8, min_new_tokens=8)
        for requests in (
            [Request(PROMPTS[1], sampling, group_id=4, episode_id=i) for i in range(6)],
            [Request(PROMPTS[1], dataclasses.replace(sampling, seed=i)) for i in range(6)],
            [Request(PROMPTS[1], sampling)] * 6,
        ):
            assert len({got.token_ids for got in run(engine, *requests)}) > 3

    def test_a_seed_gives_the_same_response_in_any_company(self, engine: RolloutEngine) -> None:
        """Alone, among others, in another order."""
        self.claims(engine, "seed")
        own = [Request(p, Sampling(max_new_tokens=10, seed=50 + i)) for i, p in enumerate(PROMPTS)]
        others = [Request(p, Sampling(max_new_tokens=5)) for p in PROMPTS]
        alone = [run(engine, request)[0].token_ids for request in own]
        mixed = run(engine, *others, *reversed(own))[len(others) :]
        assert [got.token_ids for got in reversed(mixed)] == alone

    def test_batch_invariant_is_bit_equal(
        self, target: type[RolloutEngine], path: Path, reference: RolloutReference
    ) -> None:
        """Tokens and log-probabilities, whatever else runs."""
        if "batch-invariant" not in target.capabilities:
            pytest.skip(f"rollout '{self.rollout}' does not claim 'batch-invariant'")
        engine = self.make(target, path, batch_invariant=True)
        engine.load(3, reference.tensors())
        own = [
            Request(p, dataclasses.replace(s, seed=i))
            for i, (p, s) in enumerate(zip(PROMPTS * 2, SAMPLINGS + SAMPLINGS[:2], strict=True))
        ]
        alone = [run(engine, request)[0] for request in own]
        others = [Request((9,) * n, Sampling(max_new_tokens=20)) for n in (1, 9, 30)]
        assert run(engine, *others, *own)[len(others) :] == alone
        engine.close()

    # --- what cannot be served --------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [((), "empty"), (None, ""), ((3, VOCABULARY), str(VOCABULARY)), ((-1,), "-1")],
    )
    def test_a_wrong_prompt_is_refused_and_hurts_no_other(
        self, engine: RolloutEngine, prompt: tuple[int, ...] | None, message: str
    ) -> None:
        """Empty, as long as the model has positions (None), or with ids that the model lacks."""
        if prompt is None:
            prompt, message = (3,) * self.positions, str(self.positions)

        async def go() -> list[Any]:
            requests = [Request(prompt), Request(PROMPTS[1], Sampling(max_new_tokens=3))]
            return await asyncio.gather(
                *[engine.generate(r) for r in requests], return_exceptions=True
            )

        wrong, right = asyncio.run(go())
        assert isinstance(wrong, RolloutError)
        assert message in str(wrong)
        assert isinstance(right, Completion)
        assert right.token_ids


def run(engine: RolloutEngine, *requests: Request) -> list[Completion]:
    """All at once, in a loop of their own."""

    async def go() -> list[Completion]:
        return await asyncio.gather(*[engine.generate(request) for request in requests])

    return asyncio.run(go())
