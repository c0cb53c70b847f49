"""Everything that was renamed and still works: one table, one warning, one end.

The policy is docs/deprecation.md. A row is deleted, with what reads it, in the release that it
names: a test fails from that release on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

__all__ = [
    "DEPRECATIONS",
    "Deprecated",
    "RlframeDeprecation",
    "faults",
    "moved_names",
    "renamed",
    "warn_of_hooks",
]

What = Literal["option", "component", "hook", "name"]
_LEAST = 2
"""Minor releases between the first warning and the end."""


class RlframeDeprecation(FutureWarning):
    """Something that a user wrote will stop working; Python shows it by default."""


@dataclass(frozen=True)
class Deprecated:
    """``old`` works until ``removed``, a version like "0.4"; ``instead`` is what to write.

    Old and new are, for an ``option``, its dotted key ("optim.lr"); for a ``component``
    "KIND NAME"; for a ``hook`` its name; for a ``name`` of Python "package.module:attribute".
    """

    what: What
    old: str
    instead: str
    since: str
    removed: str

    def __str__(self) -> str:
        return (
            f"{self.what} '{self.old}' is deprecated since rlframe {self.since} and goes in "
            f"{self.removed}: write '{self.instead}'"
        )

    def warn(self, where: str = "") -> None:
        """Warn whoever used it; ``where`` says in which file, flag or plugin."""
        text = f"{self} ({where})" if where else str(self)
        warnings.warn(text, RlframeDeprecation, stacklevel=3)


DEPRECATIONS: tuple[Deprecated, ...] = ()
"""Every one that this version knows."""


def renamed(what: What, old: str) -> Deprecated | None:
    """The row of an old name, or None."""
    return next((row for row in DEPRECATIONS if (row.what, row.old) == (what, old)), None)


def warn_of_hooks(plugin: object, name: str) -> None:
    """Warn of each old hook that a plugin has."""
    for hook in dir(plugin):
        row = renamed("hook", hook) if hook.startswith("rlframe_") else None
        if row is not None:
            row.warn(f"plugin '{name}'")


def faults(row: Deprecated, version: str) -> list[str]:
    """What a row of the table does against the policy in a release of this version."""
    from packaging.version import Version

    since, removed, now = Version(row.since), Version(row.removed), Version(version)
    found = []
    if since.major == removed.major and removed.minor - since.minor < _LEAST:
        found.append(f"{row}: it needs {_LEAST} minor releases with a warning")
    if since > Version(now.base_version):
        found.append(f"{row}: it warns before its time")
    if Version(now.base_version) >= removed:
        found.append(f"{row}: this is that release, delete the row and what reads it")
    if row.old == row.instead or not row.instead:
        found.append(f"{row}: it says nothing else to write")
    return found


def moved_names(module: str) -> Callable[[str], Any]:
    """For a module whose public names moved: ``__getattr__ = moved_names(__name__)``.

    The name is looked up where the table says, with a warning.
    """

    def find(name: str) -> Any:
        row = renamed("name", f"{module}:{name}")
        if row is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        row.warn()
        place, _, attribute = row.instead.partition(":")
        return getattr(import_module(place), attribute)

    return find
