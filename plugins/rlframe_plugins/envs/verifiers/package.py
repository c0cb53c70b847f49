"""The package ``verifiers``: which versions are supported, and the columns of its rows."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from rlframe.errors import ConfigError

__all__ = ["TASK", "TASKSET", "check_version"]

TASK, TASKSET = "task", "data_source"
"""Columns: a task's data as JSON has it, and the id of its taskset."""
_LEAST = "0.4"


def check_version() -> None:
    """Raises ConfigError where the installed version has another interface."""
    try:
        found = version("verifiers")
    except PackageNotFoundError:  # a source tree that was never installed
        return
    if Version(found) < Version(_LEAST):
        raise ConfigError(
            f"verifiers {found} is installed, rlframe plays tasksets of {_LEAST} and newer "
            f"(verifiers.v1), not what load_environment gives: pip install -U 'verifiers>={_LEAST}'"
        )
