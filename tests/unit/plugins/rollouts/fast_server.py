"""A server without a model: ``python fast_server.py LIVES`` prints its port; ends with its stdin.

It speaks enough of SGLang's protocol; a token says where in its sequence it stands. After LIVES
tokens it is killed -9; below 0 it never is.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from typing import Any

from rlframe.testing.http_server import HttpServer


class Fast(HttpServer):
    def __init__(self, lives: int) -> None:
        self._lives = lives
        super().__init__("fast")

    async def answer(self, method: str, path: str, body: Any) -> Any:
        if path == "/generate":
            return self._tokens(body)
        return {"success": True, "weight_version": "1"}

    async def _tokens(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        first, count = len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
        for made in range(1, count + 1):
            await asyncio.sleep(0.002)
            self._lives -= 1
            if self._lives == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            meta = {
                "finish_reason": {"type": "length"} if made == count else None,
                "completion_tokens": made,
                "weight_version": "1",
                "output_token_logprobs": [[-1.0, first + made - 1, None]],
            }
            yield {"output_ids": [first + made - 1], "meta_info": meta}


if __name__ == "__main__":
    print(Fast(int(sys.argv[1])).port, flush=True)
    sys.stdin.read()
    os._exit(0)
