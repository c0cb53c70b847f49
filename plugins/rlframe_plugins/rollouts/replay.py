"""Plays the completions that another run dumped, so that training can be debugged alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.config import SamplingConfig
from rlframe.errors import RolloutError
from rlframe.interfaces.rollout import RolloutEngine, RolloutSpec
from rlframe.requests import Completion, FinishReason, Request
from rlframe.weights.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ReplayRollout"]

_TOOL = -1
"""Version of a token that no policy sampled."""


@dataclass(frozen=True)
class Recorded:
    """One training row of an episode as dumped, and the ``file:line`` where it stands."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    where: str


class ReplayRollout(RolloutEngine):
    """Answers by group and episode, and checks that the prompt is the recorded one.

    Tokens, log-probabilities and versions are those of the recorded run; weights are ignored. A
    later turn of an episode is found by its prompt, which is the recorded row up to there.
    """

    capabilities = frozenset({"replay"})

    @dataclass(frozen=True)
    class Config(SamplingConfig):
        """Which run is played; sampling options have no effect."""

        run: str = ""
        """Folder of a run that was made with run.dump_rollouts=true."""

        def __post_init__(self) -> None:
            """Check that the run has rollouts; raises ValueError."""
            super().__post_init__()
            if not self.run:
                raise ValueError("run is empty: name the folder of a run with rollout.run=FOLDER")
            if not any(Path(self.run, "rollouts").glob("step-*.jsonl")):
                raise ValueError(
                    f"run has no rollouts/step-*.jsonl in '{self.run}': make that run with "
                    "run.dump_rollouts=true"
                )

    config: ReplayRollout.Config

    def __init__(self, config: ReplayRollout.Config, spec: RolloutSpec) -> None:
        super().__init__(config, spec)
        self._rows: dict[tuple[int, int], list[Recorded]] = {}
        for key, row in _read(Path(config.run, "rollouts")):
            self._rows.setdefault(key, []).append(row)
        self._version = -1
        self._counters = {"requests": 0.0, "prompt_tokens": 0.0, "response_tokens": 0.0}

    async def generate(self, request: Request) -> Completion:
        """The recorded response; raises RolloutError where there is none to this prompt."""
        key = (request.group_id, request.episode_id)
        who = f"episode {request.episode_id} of group {request.group_id}"
        rows = self._rows.get(key)
        if rows is None:
            raise RolloutError(
                f"'{self.config.run}' holds no completion of {who}: replay needs the data, seed, "
                "algo.samples_per_prompt and steps of that run, and data.validate=null"
            )
        for row in rows:
            completion = _answer(row, request.prompt_ids)
            if completion is not None:
                self._counters["requests"] += 1
                self._counters["prompt_tokens"] += len(request.prompt_ids)
                self._counters["response_tokens"] += len(completion.token_ids)
                return completion
        raise RolloutError(
            f"the prompt of {who} is not the recorded one ({rows[0].where}): it begins with tokens "
            f"{list(request.prompt_ids[:8])}, recorded were {list(rows[0].prompt_ids[:8])}; use "
            "the data, template and tokenizer of that run"
        )

    def abort(self, request_id: str) -> None:
        """Nothing runs that could be ended."""

    def load(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Only the version is noted."""
        self._version = version

    def layout(self, params: Layout) -> Layout:
        """The trainer's own: nothing needs to move."""
        return params

    @property
    def version(self) -> int:
        """What was last loaded; tokens carry the recorded versions."""
        return self._version

    def stats(self) -> dict[str, float]:
        """Counters since the start: requests and tokens."""
        return dict(self._counters)


def _answer(row: Recorded, prompt_ids: tuple[int, ...]) -> Completion | None:
    """The sampled tokens that follow ``prompt_ids`` in a row, or None where it differs."""
    start = len(prompt_ids) - len(row.prompt_ids)
    whole = row.prompt_ids + row.token_ids
    if not 0 <= start <= len(row.token_ids) or whole[: len(prompt_ids)] != prompt_ids:
        return None
    end = start
    while end < len(row.token_ids) and row.versions[end] != _TOOL:
        end += 1
    reason: FinishReason = row.finish_reason if end == len(row.token_ids) else "stop"
    return Completion(
        row.token_ids[start:end], row.logprobs[start:end], row.versions[start:end], reason
    )


def _read(folder: Path) -> Iterator[tuple[tuple[int, int], Recorded]]:
    for path in sorted(folder.glob("step-*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                where = f"{path}:{number}"
                try:
                    yield _parse(json.loads(line), where)
                except (ValueError, KeyError, TypeError) as error:
                    raise RolloutError(
                        f"{where} is not a dumped completion ({type(error).__name__}: {error}); "
                        "make the run again with run.dump_rollouts=true"
                    ) from error


def _parse(line: Mapping[str, Any], where: str) -> tuple[tuple[int, int], Recorded]:
    row = Recorded(
        prompt_ids=tuple(line["prompt_ids"]),
        token_ids=tuple(line["token_ids"]),
        logprobs=tuple(line["logprobs"]),
        versions=tuple(line["versions"]),
        finish_reason=line["finish_reason"],
        where=where,
    )
    if not len(row.token_ids) == len(row.logprobs) == len(row.versions):
        raise ValueError("token_ids, logprobs and versions differ in length")
    return (int(line["group_id"]), int(line["episode_id"])), row
