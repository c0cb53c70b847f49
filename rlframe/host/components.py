"""What a plugin offers: lazy pointers to classes, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["KINDS", "WORDS", "Component"]

KINDS = (
    "algorithm",
    "model",
    "strategy",
    "rollout",
    "reward",
    "environment",
    "tool-parser",
    "tail",
    "scheduler",
    "sampler",
    "protocol",
    "transfer",
    "checkpoint",
    "transport",
    "codec",
    "resharder",
    "mapper",
    "cluster",
    "logger",
    "callback",
    "dataset",
    "section",
)
"""Every kind of component there is."""

WORDS = {"algorithm": "algo", "environment": "env"}
"""Kinds that a user types as another word; every other kind is its own word."""

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True)
class Component:
    """One thing that a plugin offers; nothing is imported before it is chosen.

    ``target`` is ``"pkg.module:Class"``; ``requires`` are importable module names, looked up before
    any worker starts; ``extra`` is the extra of the plugin's distribution that installs them.
    ``plugin`` and ``distribution`` are filled in by the host. Raises ValueError when a field is
    malformed.

    Example: ``Component("rollout", "vllm", "acme.vllm:Engine", requires=("vllm",), extra="vllm")``.
    """

    kind: str
    name: str
    target: str
    requires: tuple[str, ...] = ()
    extra: str | None = None
    summary: str = ""
    adapts: bool = False
    """Whether its class method ``adapt`` makes a component of the kind out of any plain class."""
    distribution: str = ""
    plugin: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"component kind {self.kind!r} is none of {', '.join(KINDS)}")
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"component name {self.name!r} must be letters, digits and -_.+")
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target):
            raise ValueError(
                f"target {self.target!r} of {self.kind} '{self.name}' must be 'pkg.module:Class'"
            )
        if isinstance(self.requires, str):
            raise ValueError(f"requires of {self.kind} '{self.name}' must be a tuple of names")

    @property
    def word(self) -> str:
        """The kind as a user types it: ``algo``, ``env``, ``rollout``, ..."""
        return WORDS.get(self.kind, self.kind)
