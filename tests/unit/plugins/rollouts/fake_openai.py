"""An OpenAI-compatible server over real HTTP with a small real model behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from rlframe.config import ModelConfig
from rlframe.interfaces.rollout import RolloutSpec
from rlframe.requests import Completion, Request, Sampling
from rlframe.serving import load_tokenizer
from rlframe.testing.http_server import Denied, HttpServer
from rlframe.testing.rollout_reference import RolloutReference
from rlframe_plugins.rollouts.torch.engine import TorchRollout

KNOWN = {"model", "max_tokens", "temperature", "top_p", "stream", "stop", "seed"}
TOKENS = {"prompt", "return_token_ids", "logprobs", "stop_token_ids", "include_stop_str_in_output"}


class FakeOpenAI(HttpServer):
    """``tokens`` says whether it gives token ids, as vLLM does; unknown fields are refused."""

    def __init__(self, path: Path, *, tokens: bool = False) -> None:
        spec = RolloutSpec(str(path), ModelConfig(path=str(path)))
        self.engine = TorchRollout(TorchRollout.Config(), spec)
        self.engine.load(0, RolloutReference(path).tensors())
        self.tokenizer, self._tokens = load_tokenizer(spec), tokens
        super().__init__("fake-openai")
        self.url += "/v1"

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "tiny"}]}
        if path not in ("/v1/completions", "/v1/chat/completions"):
            raise Denied(404, {"detail": "Not Found"})
        own = {"messages"} if "chat" in path else TOKENS if self._tokens else {"prompt"}
        if set(body) - KNOWN - own or body["model"] != "tiny":
            raise Denied(400, {"error": {"message": f"unknown: {sorted(set(body) - KNOWN - own)}"}})
        return self._stream(body, "chat" in path)

    async def _stream(self, body: Mapping[str, Any], chat: bool) -> AsyncIterator[dict[str, Any]]:
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        ids = prompt if isinstance(prompt, list) else self.tokenizer.encode(prompt)
        sampling = Sampling(
            temperature=body["temperature"],
            top_p=body["top_p"],
            max_new_tokens=body["max_tokens"],
            stop_token_ids=tuple(body.get("stop_token_ids", ())),
        )
        done = await self.engine.generate(Request(tuple(ids), sampling))
        for place in range(len(done.token_ids)):
            yield {"choices": [self._choice(done, place, chat)]}
        yield {"choices": [], "usage": {"completion_tokens": len(done.token_ids)}}

    def _choice(self, done: Completion, place: int, chat: bool) -> dict[str, Any]:
        text = self.tokenizer.decode(done.token_ids[place : place + 1], skip_special_tokens=True)
        last = place + 1 == len(done.token_ids)
        choice: dict[str, Any] = {"finish_reason": done.finish_reason if last else None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        if self._tokens:
            choice["token_ids"] = [done.token_ids[place]]
            choice["logprobs"] = {"token_logprobs": [done.logprobs[place]]}
        return choice

    def close(self) -> None:
        super().close()
        self.engine.close()
