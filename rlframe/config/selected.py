"""A chosen component with its options, as it stands in a config and travels to workers."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from rlframe.host.resolve import adapted, load_target

__all__ = ["Selected"]


@dataclass(frozen=True)
class Selected:
    """A component: ``target`` is what a worker imports, ``config`` an instance of its ``Config``.

    ``config`` is None where the component has no options. ``sha256`` is the hash of a ``file.py``
    target, checked where it is imported. ``value`` is set only for what has no importable name (a
    class of a notebook, a function of a script) and then travels itself. ``adapter`` is the target
    of the component that makes one of the kind out of a plain class.
    """

    name: str
    target: str
    config: Any = None
    sha256: str = ""
    value: Any = None
    adapter: str = ""

    def load(self) -> Any:
        """The class (or reward function); imported at the first call. Raises PluginError."""
        found = self.value
        if found is None:
            found = load_target(self.target, self.sha256)
        return adapted(found, self.adapter)

    def __reduce__(self) -> tuple[Any, ...]:
        config = pickle_config(self)
        state = (self.name, self.target, config, self.sha256, self.value, self.adapter)
        return rebuild, state


def pickle_config(selected: Selected) -> Any:
    """The config; as bytes where its class exists only after the user's file was imported."""
    if not selected.sha256:
        return selected.config
    return pickle.dumps(selected.config)


def rebuild(
    name: str, target: str, config: Any, sha256: str, value: Any, adapter: str = ""
) -> Selected:
    """The reverse of pickling: imports a user's file before its Config is needed."""
    if sha256:
        load_target(target, sha256)
        config = pickle.loads(config)
    return Selected(name, target, config, sha256, value, adapter)
