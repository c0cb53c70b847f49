"""Recipes and the default values of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlframe import hookimpl

RLFRAME_API_VERSION = 1


@hookimpl
def rlframe_defaults() -> str:
    """Where the defaults lie."""
    return str(Path(__file__).with_name("defaults.yaml"))


@hookimpl
def rlframe_cli(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``rlframe new`` and ``rlframe recipes``."""
    from rlframe_templates.new import add_command
    from rlframe_templates.recipe_list import add_recipes_command

    add_command(subcommands)
    add_recipes_command(subcommands)
