"""The process that holds an SGLang engine for one worker; see :mod:`..hosted.host`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlframe_plugins.rollouts.hosted.host import hold
from rlframe_plugins.rollouts.sglang.api import loaded
from rlframe_plugins.rollouts.sglang.core import SGLangCore

__all__ = ["make_core"]


def make_core(arguments: Mapping[str, Any]) -> SGLangCore:
    """Start the engine, which takes a minute. Raises RolloutError and what SGLang raises."""
    api = loaded()
    engine = api.engine(**arguments["engine"])
    workers = int(arguments["engine"]["tp_size"])
    return SGLangCore(engine, api, workers, int(arguments["bucket_bytes"]))


if __name__ == "__main__":
    hold("SGLang", make_core)
