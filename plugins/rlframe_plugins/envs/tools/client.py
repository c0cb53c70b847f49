"""The ``client`` that a user's ``run`` is given: OpenAI's own where it is installed, else like it.

Both speak HTTP to the endpoint of the run, so any other program may too: the address and the key of
the episode are also in ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.
"""

from __future__ import annotations

import asyncio
import http.client
import importlib
import importlib.util
import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Client", "ClientError", "make_client"]

_LONGEST_S = 3600.0
_OF_THE_CALL = ("timeout", "extra_headers", "extra_query")
"""Arguments of OpenAI's client that are no part of the request."""


class ClientError(Exception):
    """The endpoint refused a request."""


def make_client(url: str, key: str) -> Any:
    """An ``AsyncOpenAI`` where the package is there, else a :class:`Client`."""
    if importlib.util.find_spec("openai") is None:
        return Client(url, key)
    openai = importlib.import_module("openai")
    return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=_LONGEST_S)


class Client:
    """``client.chat.completions.create(...)`` over HTTP, its answers with OpenAI's attributes."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url, self.api_key = base_url, api_key
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    async def _create(self, **payload: Any) -> Any:
        missing = [name for name in ("model", "messages") if name not in payload]
        if missing:
            raise TypeError(f"chat.completions.create: missing argument '{missing[0]}'")
        if payload.get("stream"):
            raise TypeError("stream=True needs the package openai: pip install openai")
        more = payload.pop("extra_body", None) or {}
        body = {name: value for name, value in payload.items() if name not in _OF_THE_CALL}
        return await asyncio.to_thread(self._post, json.dumps({**body, **more}).encode())

    def _post(self, body: bytes) -> Any:
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=_LONGEST_S
        )
        headers = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"{address.path}/chat/completions", body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise ClientError(f"HTTP {answer.status}: {text[:500].decode('utf-8', 'replace')}")
        return json.loads(text, object_hook=_Answer)


class _Answer(dict[str, Any]):
    """An object of JSON with its members as attributes; None for one that is not there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The object as plain data."""
        found: dict[str, Any] = json.loads(json.dumps(self))
        if options.get("exclude_none"):
            return {key: value for key, value in found.items() if value is not None}
        return found
