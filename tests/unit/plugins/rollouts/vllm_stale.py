"""vLLM's worker as it would be without what rlframe does for a tied head."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from rlframe_plugins.rollouts.vllm import extension
from rlframe_plugins.rollouts.vllm.extension import WeightsExtension

__all__ = ["StaleHead"]


class StaleHead(WeightsExtension):
    """Weights are taken by vLLM's own reload alone; named in ``rollout.engine``."""

    def rlframe_load(self, path: str, entries: list[Any]) -> None:
        """See :class:`WeightsExtension`."""
        with patch.object(extension, "_prepack_head", lambda model: None):
            super().rlframe_load(path, entries)
