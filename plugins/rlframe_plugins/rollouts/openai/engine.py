"""Any OpenAI-compatible endpoint as a rollout engine, for evaluation: it takes no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlframe.config import Config as FitConfig
from rlframe.errors import ConfigError
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Request
from rlframe.serving import check_sampling, load_tokenizer
from rlframe_plugins.rollouts.http.client import HttpOptions
from rlframe_plugins.rollouts.http.engine import HttpConfig, HttpRollout
from rlframe_plugins.rollouts.openai.protocol import Form, OpenAIServer

__all__ = ["OpenAIRollout"]


class OpenAIRollout(HttpRollout):
    """Responses of a model that somebody else serves.

    Where an endpoint gives text its tokens are those of the tokenizer of ``model.path``, and their
    log-probabilities 0: nothing can be learned from them, so that a run refuses this engine.
    """

    takes_weights = False

    @dataclass(frozen=True)
    class Config(HttpConfig):
        """Where the endpoint is and how it is asked; ``url`` ends as in http://host:8000/v1."""

        api: Literal["chat", "text", "ids"] = "chat"
        """chat: the prompt is a user's message; text: it is text to be continued; ids: its tokens
        are, by servers that give tokens back (vLLM's return_token_ids)."""
        model: str = ""
        """The model's name at that address."""
        system: str = ""
        """A system message for ``chat``; empty sends none."""
        extra: dict[str, Any] = field(default_factory=dict)
        """Further fields of each request, as the endpoint knows them; null leaves one out."""

        def __post_init__(self) -> None:
            """Check; raises ValueError."""
            super().__post_init__()
            if not self.model:
                raise ValueError("model must name the model at rollout.url")

    config: OpenAIRollout.Config

    def __init__(self, config: OpenAIRollout.Config, spec: RolloutSpec) -> None:
        tokenizer = load_tokenizer(spec)

        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        def decode(ids: Sequence[int]) -> str:
            return str(tokenizer.decode(ids, skip_special_tokens=config.api == "chat"))

        self._form = Form(config.api, config.model, config.system, config.extra, encode, decode)
        super().__init__(config, spec)
        self._version = 0

    @classmethod
    def validate(cls, config: FitConfig) -> None:
        """Raise ConfigError where a prompt would go through two chat templates."""
        if config.rollout.config.api == "chat" and config.data.template in ("auto", "chat"):
            raise ConfigError(
                "rollout.api=chat sends the prompt as a message, which the endpoint puts into its "
                f"own chat template: data.template={config.data.template} would be a second one. "
                "Add data.template=plain, or rollout.api=text"
            )

    def server(self, url: str, options: HttpOptions) -> OpenAIServer:
        """See :class:`HttpRollout`."""
        return OpenAIServer(url, options, self.config.limit_s, self.config.idle_s, self._form)

    def _check(self, request: Request) -> None:
        check_sampling(request)
