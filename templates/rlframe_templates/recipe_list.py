"""``rlframe recipes [NAME]``: whole configs to begin with, to be kept in a file of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlframe import ConfigError
from rlframe.errors import unknown_name

__all__ = ["FOLDER", "add_recipes_command", "first_sentence", "recipes"]

FOLDER = Path(__file__).with_name("recipes")


def add_recipes_command(subcommands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``rlframe recipes``."""
    command = subcommands.add_parser("recipes", help="list whole configs, or print one")
    command.add_argument("name", metavar="NAME", nargs="?", help="the one to print")
    command.set_defaults(run=recipes)


def recipes(arguments: argparse.Namespace) -> int:
    """Print the list, or a recipe as it is. Raises ConfigError for an unknown one."""
    found = {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}
    if arguments.name is None:
        width = max(map(len, found))
        for name, path in found.items():
            print(f"{name:<{width}}  {first_sentence(path.read_text(encoding='utf-8'))}")
        print("rlframe recipes NAME > run.yaml; rlframe fit --config run.yaml")
        return 0
    if arguments.name not in found:
        raise ConfigError(unknown_name("recipe", arguments.name, found))
    print(found[arguments.name].read_text(encoding="utf-8"), end="")
    return 0


def first_sentence(text: str) -> str:
    """What a recipe is for: its first comment up to the first full stop."""
    lines = [line.removeprefix("#").strip() for line in text.splitlines()]
    begins = next((n for n, line in enumerate(text.splitlines()) if not line.startswith("#")), 0)
    return " ".join(lines[:begins]).partition(". ")[0].rstrip(".")
