"""The part of the rollout kit about weights, abort and deadlines; see ``rollout_kit``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine
from rlframe.interfaces.strategy import RankInfo
from rlframe.requests import Completion, Request, Sampling
from rlframe.testing.models import VOCABULARY
from rlframe.testing.rollout_pauses import LONG, PROMPT, SHORT, RolloutPauses, begun
from rlframe.testing.rollout_reference import RolloutReference
from rlframe.weights.layout import Layout, ParamInfo

__all__ = ["RolloutControl"]


class RolloutControl(RolloutPauses):
    """Checks of what happens around generation."""

    def check(
        self, reference: RolloutReference, request: Request, got: Completion, version: int
    ) -> None:
        """Compare a completion with the model."""
        raise NotImplementedError

    # --- weights --------------------------------------------------------------------------------

    def test_no_weights_is_an_error(self, empty: RolloutEngine) -> None:
        """And the version says so."""
        assert empty.version == -1
        with pytest.raises(RolloutError, match="load"):
            asyncio.run(empty.generate(Request(PROMPT, SHORT)))

    def test_the_next_version_samples_from_the_new_weights(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """After a change in place, the tied embedding included, and after other tensors."""
        request = Request(PROMPT, Sampling(max_new_tokens=12))
        self.check(reference, request, asyncio.run(engine.generate(request)), version=3)
        reference.change(seed=1)
        engine.load(4, reference.tensors())
        assert engine.version == 4
        self.check(reference, request, asyncio.run(engine.generate(request)), version=4)
        reference.change(seed=2)
        engine.load(5, {name: t.clone() for name, t in reference.tensors().items()})
        self.check(reference, request, asyncio.run(engine.generate(request)), version=5)

    def test_an_older_version_and_one_that_comes_again(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """As after a resume: the weights are those of the last load, whatever its number."""
        request = Request(PROMPT, Sampling(max_new_tokens=8))
        for version in (2, 2):
            reference.change(seed=version + engine.version)
            engine.load(version, reference.tensors())
            assert engine.version == version
            got = asyncio.run(engine.generate(request))
            self.check(reference, request, got, version=version)

    def test_a_load_in_flight_marks_tokens_with_their_version(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """Versions of a response never fall; a request after the load has only the new one."""
        self.claims(engine, "in-flight")

        async def go() -> tuple[Completion, Completion]:
            first = asyncio.create_task(engine.generate(Request(PROMPT, self.endless)))
            await begun(engine)
            engine.load(4, reference.tensors())
            return await first, await engine.generate(Request(PROMPT, SHORT))

        first, second = asyncio.run(go())
        assert list(first.versions) == sorted(first.versions)
        assert set(first.versions) <= {3, 4}
        assert first.versions[-1] == 4
        assert set(second.versions) == {4}

    def test_layout_covers_every_parameter(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """On every rank, under canonical names and shapes."""
        shapes = {n: tuple(t.shape) for n, t in reference.tensors().items()}
        params = {n: ParamInfo(shape, "float32") for n, shape in shapes.items()}
        engine.rank = RankInfo(rank=1, world=2, local_rank=1)
        wanted = engine.layout(Layout.full(params, ranks=2))
        assert wanted.params == params
        assert wanted.world == 2
        assert all({piece.name for piece in rank} == set(params) for rank in wanted.ranks)

    # --- abort, deadline ------------------------------------------------------------------------

    def test_abort_ends_one_request_only(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """It returns what it has; an unknown id has no effect."""

        async def go() -> list[Completion]:
            asked = {"a": LONG, "b": self.endless, "c": LONG}
            requests = [Request(PROMPT, how, request_id=one) for one, how in asked.items()]
            tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
            await asyncio.sleep(0)
            engine.abort("b")
            engine.abort("nobody")
            return await asyncio.gather(*tasks)

        first, aborted, last = asyncio.run(go())
        assert aborted.finish_reason == "abort"
        assert len(aborted.token_ids) < self.lasting
        self.check(reference, Request(PROMPT, self.endless), aborted, version=3)
        assert (first.finish_reason, last.finish_reason) == ("length", "length")
        assert len(first.token_ids) == len(last.token_ids) == 50

    def test_a_running_request_can_be_aborted(
        self, engine: RolloutEngine, reference: RolloutReference
    ) -> None:
        """The first of several that run; unless the engine answers in one step."""

        async def go() -> list[Completion]:
            asked = {"a": self.endless, "b": LONG, "c": LONG}
            requests = [Request(PROMPT, how, request_id=one) for one, how in asked.items()]
            tasks = [asyncio.create_task(engine.generate(r)) for r in requests]
            await begun(engine)
            engine.abort("a")
            return await asyncio.gather(*tasks)

        first, *others = asyncio.run(go())
        whole = len(first.token_ids) == self.lasting
        assert first.finish_reason == ("length" if whole else "abort")
        self.check(reference, Request(PROMPT, self.endless), first, version=3)
        for got in others:
            self.check(reference, Request(PROMPT, LONG), got, version=3)
        assert [got.finish_reason for got in others] == ["length", "length"]

    def test_a_deadline_in_the_past_aborts(self, engine: RolloutEngine) -> None:
        """The others go on."""

        async def go() -> tuple[Completion, ...]:
            return await asyncio.gather(
                engine.generate(Request(PROMPT, LONG, deadline_s=0.0)),
                engine.generate(Request(PROMPT, SHORT)),
                engine.generate(Request(PROMPT, SHORT, deadline_s=1000.0)),
            )

        late, other, early = asyncio.run(go())
        assert late.finish_reason == "abort"
        assert len(late.token_ids) < 50
        assert (other.finish_reason, early.finish_reason) == ("length", "length")

    def test_a_cancelled_caller_hurts_no_other(self, engine: RolloutEngine) -> None:
        """Nor the engine."""

        async def go() -> Completion:
            gone = asyncio.create_task(engine.generate(Request(PROMPT, LONG)))
            other = asyncio.create_task(engine.generate(Request(PROMPT, SHORT)))
            await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            return await other

        assert len(asyncio.run(go()).token_ids) == 4
        assert len(asyncio.run(engine.generate(Request(PROMPT, SHORT))).token_ids) == 4

    def test_odd_requests_are_refused_and_hurt_no_other(self, engine: RolloutEngine) -> None:
        """No number, none that is in range, none that the model knows: each its own error."""
        odd: list[dict[str, Any]] = [
            {"sampling": Sampling(temperature=float("nan"))},
            {"sampling": Sampling(temperature=1e-40)},
            {"sampling": Sampling(top_k=10**30)},
            {"sampling": Sampling(max_new_tokens=0)},
            {
                "sampling": Sampling(
                    stop_token_ids=(VOCABULARY,), max_new_tokens=4, min_new_tokens=2
                )
            },
            {"sampling": Sampling(seed=0.5)},  # type: ignore[arg-type]
            {"deadline_s": float("nan")},
            {"prompt_ids": ("a",)},
            {"prompt_ids": list(PROMPT)},
            {"sampling": Sampling(stop_token_ids=tuple(range(VOCABULARY)), min_new_tokens=4)},
            {"sampling": Sampling(stop=("\ud800",))},
        ]

        async def go() -> list[Any]:
            wrong = [Request(**{"prompt_ids": PROMPT, **fields}) for fields in odd]
            right = [Request(PROMPT, SHORT), Request(PROMPT, SHORT, deadline_s=-1.0)]
            asked = [engine.generate(one) for one in (*right, *wrong)]
            return await asyncio.gather(*asked, return_exceptions=True)

        good, late, *errors = asyncio.run(go())
        assert len(good.token_ids) == 4
        assert late.finish_reason == "abort"
        for error, fields in zip(errors, odd, strict=True):
            assert isinstance(error, RolloutError), (fields, error)
