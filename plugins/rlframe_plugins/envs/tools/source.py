"""How a user's class reaches a process of its own: by file, by module, or by value."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from rlframe.host.resolve import load_target

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """``target`` is ``file.py:Class`` or ``module:Class``; ``pickled`` stands for neither."""

    target: str = ""
    pickled: bytes = b""

    @classmethod
    def of(cls, user: type[Any]) -> Source:
        """Of a class that is imported here."""
        module, name = user.__module__, user.__qualname__
        known = sys.modules.get(module)
        if module == "__main__" or "<" in name or known is None:
            import cloudpickle

            return cls(pickled=cloudpickle.dumps(user))
        if module.startswith("_rlframe_file_"):
            return cls(f"{known.__file__}:{name}")
        return cls(f"{module}:{name}")

    def load(self) -> type[Any]:
        """The class. Raises PluginError where it cannot be imported."""
        if self.pickled:
            import pickle

            found: type[Any] = pickle.loads(self.pickled)
            return found
        loaded: type[Any] = load_target(self.target)
        return loaded
