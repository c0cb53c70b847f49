"""Errors that reach a user: what went wrong, where, and the next command.

All of them survive pickling, because they cross process boundaries: every argument is positional
and kept in ``args``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "BatchError",
    "ConfigError",
    "DataError",
    "EngineError",
    "LostError",
    "MethodFault",
    "ModelError",
    "PluginError",
    "RewardError",
    "RlframeError",
    "RolloutError",
    "SnapshotError",
    "StuckError",
    "SyncError",
    "TrainingError",
    "WorkerError",
    "nearest",
    "unknown_name",
]


class RlframeError(Exception):
    """Base of every error that rlframe raises for a user; the CLI prints it without a traceback."""

    exit_code = 1
    mendable: ClassVar[bool] = False
    """Whether new workers that go on from the newest snapshot may not meet it again."""


class ConfigError(RlframeError):
    """A value in the config, a flag or a file that it names is wrong; nothing has been started."""

    exit_code = 2


class PluginError(ConfigError):
    """A plugin or one of its components cannot be loaded, or lacks a package."""


class DataError(RlframeError):
    """A dataset row is wrong; the message names file and line."""


class ModelError(RlframeError):
    """A model or tokenizer cannot be loaded or has no needed part."""


class BatchError(RlframeError):
    """A column is unknown, missing, written twice, or of the wrong shape or dtype."""


class LostError(BatchError):
    """Rows cannot be read any more: what held them is gone."""

    mendable = True


class RewardError(RlframeError):
    """A reward function raised, timed out, or returned something that is not a reward."""


class RolloutError(RlframeError):
    """A rollout engine refused or lost a request."""


class EngineError(RolloutError):
    """A rollout engine itself failed."""

    mendable = True


class TrainingError(RlframeError):
    """An update cannot be done: a non-finite loss too often, a batch that never fills."""


class StuckError(TrainingError):
    """Something that was waited for did not come in its time; the message names the limit."""

    mendable = True


class SnapshotError(RlframeError):
    """A snapshot is missing, incomplete or damaged, or was written by an incompatible run."""


class SyncError(RlframeError):
    """A weight version is missing, incomplete or damaged; the one before goes on serving."""

    mendable = True


class WorkerError(RlframeError):
    """An exception or death in a worker, with role, rank, host and the remote traceback."""

    mendable = True

    def __init__(self, role: str, rank: int, host: str, message: str, remote: str = "") -> None:
        super().__init__(role, rank, host, message, remote)
        self.role, self.rank, self.host, self.message, self.remote = (
            role,
            rank,
            host,
            message,
            remote,
        )

    def __str__(self) -> str:
        where = f"role '{self.role}', rank {self.rank} on {self.host}: {self.message}"
        return f"{where}\n{self.remote}" if self.remote else where


class MethodFault(WorkerError):
    """A method's own code raised in a worker: it would raise again."""

    mendable = False


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None; letters in a wrong order come first."""
    found = difflib.get_close_matches(name, list(known), n=5, cutoff=0.5)
    found.sort(key=lambda one: sorted(one) != sorted(name))
    return found[0] if found else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """``unknown algo 'gpro'. Did you mean 'grpo'?`` and what exists."""
    names = sorted(known)
    close = nearest(name, names)
    hint = f" Did you mean '{close}'?" if close else ""
    return f"unknown {what} '{name}'.{hint} Known: {', '.join(names) or 'none'}."
