"""``rlframe chat``: a conversation with a model or a run's policy, by its own rollout engine."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlframe.build import run_sampling
from rlframe.calling.loops import OwnLoop
from rlframe.config import Config
from rlframe.dialogue import Dialogue, form_of
from rlframe.evaluating.evaluate import PolicyOnly
from rlframe.evaluating.policy_rollout import policy_rollout
from rlframe.models.paths import find_model, load_tokenizer, resolve_model
from rlframe.place import find_place
from rlframe.requests import Completion, Request

__all__ = ["Partner"]


class Partner:
    """A model that answers; a context manager, which ends its processes.

    What was said stays exact: the next answer is asked with the very tokens before it. Raises
    ConfigError, ModelError, SnapshotError.
    """

    def __init__(
        self,
        config: Config,
        *,
        policy: Path | None = None,
        plain: bool = False,
        system: str = "",
        temperature: float | None = None,
    ) -> None:
        find_model("model.path", config.model.path)
        algorithm = PolicyOnly()
        with ExitStack() as ends:
            place = find_place(config, algorithm)
            ends.callback(place.cluster.close)
            config = place.config
            path = resolve_model(config.model.path)
            self._tokenizer = load_tokenizer(path)
            sampling = run_sampling(config, path, self._tokenizer)
            if temperature is not None:
                sampling = dataclasses.replace(sampling, temperature=temperature)
            self._sampling, self._system = sampling, system
            self._client = policy_rollout(config, algorithm, path, sampling, place, policy, ends)
            self._loop = OwnLoop()
            ends.callback(self._loop.close)
            self._ends = ends.pop_all()
        self._form = form_of(self._tokenizer, (), "plain" if plain else "auto")
        self._dialogue: Dialogue | None = None
        self._asked = 0

    def __enter__(self) -> Partner:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.close()

    def begin(self) -> None:
        """Forget what was said."""
        self._dialogue = None

    def say(self, text: str) -> tuple[str, str]:
        """The answer, and why it ended: stop, length, ..."""
        message = {"role": "user", "content": text}
        if self._dialogue is None:
            first = [{"role": "system", "content": self._system}] if self._system else []
            messages: list[Any] = [*first, message]
            self._dialogue = Dialogue(self._form, messages, ends=self._sampling.stop_token_ids)
        else:
            self._dialogue.say([message])
        self._asked += 1
        request = Request((), self._sampling, request_id=f"chat-{self._asked}")
        asked = self._dialogue.request(request)
        done: Completion = self._loop.run(self._client.generate(asked))
        self._dialogue.heard(done)
        return self._dialogue.answer, done.finish_reason
