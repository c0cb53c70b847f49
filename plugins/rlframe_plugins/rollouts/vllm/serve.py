"""``python -m rlframe_plugins.rollouts.vllm.serve MODEL``: a vLLM server that a run can train.

vLLM's own OpenAI-compatible server with rlframe's routes (see ``routes``) and worker extension. It
listens on this machine alone unless ``--host`` opens it, which needs a token. What is not known
here is passed to vLLM.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import runpy
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from rlframe_plugins.rollouts.hosted.mortal import guarded
from rlframe_plugins.rollouts.vllm.core import Core
from rlframe_plugins.rollouts.vllm.gauges import Gauges
from rlframe_plugins.rollouts.vllm.routes import Routes
from rlframe_plugins.rollouts.vllm.translate import EXTENSION

__all__ = ["main", "server_arguments"]

_SERVER = "vllm.entrypoints.openai.api_server"


def server_arguments(model: str, host: str, port: int) -> list[str]:
    """What vLLM's server is started with, before the user's own arguments."""
    return [
        *("--model", model, "--host", host, "--port", str(port)),
        *("--worker-extension-cls", EXTENSION),
        *("--middleware", f"{Routes.__module__}.{Routes.__qualname__}"),
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
    ]


def core_of(engine: Any, model: str) -> Core:
    """Ours over the engine of vLLM's server, whose figures are at its ``/metrics``."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    @cache
    def tokenizer() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)

    def parameters(values: Any) -> Any:
        return SamplingParams(output_kind=RequestOutputKind.DELTA, **values)

    return Core(engine, parameters, tokenizer, Gauges())


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until it is ended. Exits with a message where it must not be opened."""
    parser = argparse.ArgumentParser(prog="rlframe_plugins.rollouts.vllm.serve")
    parser.add_argument("model", help="folder or name of the model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on")
    parser.add_argument("--token-env", default="", help="variable that holds the token")
    parser.add_argument("--weights-dir", default="", help="folder that weights may come from")
    own, rest = parser.parse_known_args(arguments)
    token = os.environ.get(own.token_env, "").strip() if own.token_env else ""
    if own.token_env and not token:
        parser.error(f"the environment variable {own.token_env} is not set")
    if not token and not _loopback(own.host):
        parser.error(
            f"--host {own.host} lets others load weights: set a token, export TOKEN=... and "
            "--token-env TOKEN"
        )
    if token:
        os.environ["VLLM_API_KEY"] = token  # not as an argument, which others can read
    Routes.token, Routes.folder = token, own.weights_dir
    Routes.make_core = staticmethod(lambda engine: core_of(engine, own.model))
    sys.argv = [_SERVER, *server_arguments(own.model, own.host, own.port), *rest]
    guard = guarded()
    runpy.run_module(_SERVER, run_name="__main__")
    guard.communicate()


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
