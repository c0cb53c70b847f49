"""Columns as references inside one process."""

from __future__ import annotations

from typing import Any

from rlframe.interfaces.transfer import LocalTransfer

__all__ = ["InlineTransfer"]


class InlineTransfer(LocalTransfer):
    """Nothing is copied; a block lives as long as a batch points to it."""

    def __init__(self, config: Any = None) -> None:
        super().__init__("inline")
