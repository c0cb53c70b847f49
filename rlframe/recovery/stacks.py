"""Where every thread of this process is."""

from __future__ import annotations

import sys
import threading
import traceback

__all__ = ["all_stacks"]


def all_stacks() -> str:
    """Python stacks of all threads of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)
