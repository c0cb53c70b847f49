"""The hooks of rlframe, all of them.

A plugin is a module (entry point in group ``rlframe``) with functions marked ``@rlframe.hookimpl``.
One hook offers components; the others tell everybody, add commands, or ask who claims a URI.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from rlframe.host.components import Component

if TYPE_CHECKING:
    from rlframe.config.schema import Config

__all__ = [
    "API_VERSION",
    "hookimpl",
    "hookspec",
    "rlframe_cli",
    "rlframe_components",
    "rlframe_defaults",
    "rlframe_fit_end",
    "rlframe_fit_start",
    "rlframe_open_dataset",
    "rlframe_step_end",
]

API_VERSION = 1
"""Version of these hooks. A plugin states the one it was written for as ``RLFRAME_API_VERSION``."""

hookspec = pluggy.HookspecMarker("rlframe")
hookimpl = pluggy.HookimplMarker("rlframe")


@hookspec
def rlframe_components() -> Sequence[Component]:  # type: ignore[empty-body]
    """Return the components that this plugin offers; import none of them here."""


@hookspec
def rlframe_defaults() -> str:  # type: ignore[empty-body]
    """Return the path of a YAML file with default values; exactly one plugin may do so.

    Sections under ``tuned`` hold only where the file's own model is not replaced.
    """


@hookspec
def rlframe_fit_start(run: Any, config: Config) -> None:
    """A run has been set up and is about to take its first step."""


@hookspec
def rlframe_step_end(run: Any, step: int, metrics: dict[str, float]) -> None:
    """Step ``step`` (from 1) is done; ``metrics`` are those logged for it."""


@hookspec
def rlframe_fit_end(run: Any, error: BaseException | None) -> None:
    """The run is over: ``error`` is None after success, else what ended it."""


@hookspec
def rlframe_cli(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add subcommands; each sets ``set_defaults(run=function)``, called with the parsed flags.

    The function returns the exit code.
    """


@hookspec(firstresult=True)
def rlframe_open_dataset(uri: str, config: Any) -> Any:
    """Return a dataset for ``uri`` if its scheme is this plugin's, else None.

    ``config`` is the run's ``data`` section (``rlframe.config.DataConfig``).
    """
