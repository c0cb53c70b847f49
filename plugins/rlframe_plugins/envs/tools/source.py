"""How a user's class reaches a process of its own: by file, by module, or by value."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from typing import Any

from rlframe.errors import PluginError
from rlframe.host.resolve import load_target

__all__ = ["Source"]


@dataclass(frozen=True)
class Source:
    """``target`` is ``file.py:Class`` or ``module:Class``; ``pickled`` stands for neither.

    ``given``, where it is not None, is what the class's ``prepare`` is called with once loaded.
    """

    target: str = ""
    pickled: bytes = b""
    given: Any = None

    @classmethod
    def of(cls, user: type[Any], given: Any = None) -> Source:
        """Of a class that is imported here. Raises PluginError for one that cannot be sent."""
        module, name = user.__module__, user.__qualname__
        known = sys.modules.get(module)
        if module == "__main__" or "<" in name or known is None:
            return cls(pickled=_by_value(user), given=given)
        if module.startswith("_rlframe_file_"):
            return cls(f"{known.__file__}:{name}", given=given)
        return cls(f"{module}:{name}", given=given)

    def load(self) -> type[Any]:
        """The class, ready. Raises PluginError where it cannot be imported."""
        found: Any = pickle.loads(self.pickled) if self.pickled else load_target(self.target)
        if self.given is not None:
            found.prepare(self.given)
        loaded: type[Any] = found
        return loaded


def _by_value(user: type[Any]) -> bytes:
    import cloudpickle

    try:
        pickled: bytes = cloudpickle.dumps(user)
    except Exception as error:  # pickling runs what the user's objects say
        raise PluginError(
            f"env {user.__name__} cannot be sent to a process of its own: {error}. What it uses "
            "must be made inside its methods, or the class stand in a file: --env my_env.py:"
            f"{user.__name__}"
        ) from error
    return pickled
