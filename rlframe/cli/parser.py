"""Flags of the command line. Everything that is no flag is ``key=value``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from rlframe.errors import ConfigError, unknown_name

__all__ = [
    "SELECTORS",
    "CliParser",
    "add_chat_flags",
    "add_config_flags",
    "add_eval_flags",
    "asked_flags",
    "parse",
    "say",
    "take_global",
]

SELECTORS = {
    "algo": "what is learned",
    "strategy": "how a model is spread over its ranks",
    "rollout": "engine that samples responses",
    "reward": "how responses are scored",
    "env": "what answers a response",
    "scheduler": "when the stages of a step run",
    "tail": "what becomes of responses that take much longer than others",
    "transfer": "where batch columns lie",
    "checkpoint": "how new weights reach the rollout engine",
    "resharder": "which parts of the weights go where",
    "mapper": "which role lives in which pool",
    "cluster": "where processes run",
    "logger": "where figures go; several with commas",
    "callback": "what else hangs on the loop; several with commas",
}
"""Selector flags and what each chooses."""


class CliParser(argparse.ArgumentParser):
    """An argparse parser whose errors are ours: one line, the nearest name, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of leaving the process."""
        raise ConfigError(f"{message}: see {self.prog} --help")


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that loads a config."""
    parser.add_argument("--help", "-h", action="store_true", help="show this and leave")
    add = parser.add_argument_group("what runs").add_argument
    for name, meaning in SELECTORS.items():
        add(f"--{name}", metavar="NAME", help=f"{meaning}; a name or file.py:Class")
    add = parser.add_argument_group("inputs").add_argument
    add("--config", metavar="FILE", action="append", default=[], help="YAML file; may be repeated")
    add(
        "--model",
        metavar="PATH",
        help="model.path: folder, GGUF file, hub name, or pkg:PACKAGE/FOLDER",
    )
    add("--data", metavar="URI", help="data.train: jsonl:FILE, builtin:NAME, ...")
    parser.set_defaults(takes_overrides=True)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="MODEL|RUN",
        nargs="?",
        help="model folder, hub name or pkg:PACKAGE/FOLDER; or a run's folder or snapshot",
    )


def add_eval_flags(parser: argparse.ArgumentParser) -> None:
    """What ``rlframe eval`` takes beside the flags of a config."""
    _add_target(parser)
    add_config_flags(parser)
    add = parser.add_argument_group("evaluation").add_argument
    add("--samples", metavar="K", type=int, default=1, help="responses a prompt (default: 1)")
    add("--temperature", metavar="T", type=float, help="default: 0 for one sample, else rollout's")
    add("--limit", metavar="N", type=int, default=0, help="prompts at most (default: all)")
    add("--threshold", metavar="R", type=float, default=1.0, help="reward of a right response")
    add("--answer", metavar="REGEX", help="what a response votes for in maj@k: the last match")
    add("--save", metavar="FILE", help="write every response as a JSON line")
    add("--json", action="store_true", help="print JSON")


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    """What ``rlframe chat`` takes beside the flags of a config."""
    _add_target(parser)
    add_config_flags(parser)
    add = parser.add_argument_group("conversation").add_argument
    add("--once", metavar="TEXT", help="print the answer to this, and leave")
    add("--system", metavar="TEXT", default="", help="system message")
    add("--plain", action="store_true", help="text as it stands, no chat template")
    add("--temperature", metavar="T", type=float, help="default: the rollout's own")


def asked_flags(arguments: argparse.Namespace) -> dict[str, str]:
    """The flags that were given, by word."""
    names = (*SELECTORS, "model", "data")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def take_global(argv: Sequence[str]) -> tuple[list[str], list[str], bool]:
    """Take ``--no-plugin NAME`` and ``--debug`` out, wherever they stand.

    Returns the rest, the blocked names, and whether tracebacks are wanted. Raises ConfigError.
    """
    rest: list[str] = []
    blocked: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--no-plugin":
            name = next(arguments, "")
            if not name or name.startswith("-"):
                raise ConfigError("--no-plugin needs the name of a plugin: see rlframe plugins")
            blocked.append(name)
        elif argument.startswith("--no-plugin="):
            blocked.append(argument.partition("=")[2])
        elif argument != "--debug":
            rest.append(argument)
    return rest, blocked, "--debug" in argv


def parse(parser: CliParser, argv: Sequence[str], commands: Sequence[str]) -> argparse.Namespace:
    """Parse one command; what is no flag goes into ``overrides``. Raises ConfigError."""
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        raise ConfigError(unknown_name("command", argv[0], commands))
    arguments, rest = parser.parse_known_args(argv)
    takes = getattr(arguments, "takes_overrides", False)
    for one in rest:
        if one.startswith("-"):
            ours = {"run", "takes_overrides", "command", "target"}
            names = vars(arguments).keys() - ours | {"no-plugin", "debug", "help"}
            known = [f"--{name}" for name in names]
            raise ConfigError(unknown_name("flag", one.partition("=")[0], known))
        if not takes:
            raise ConfigError(f"'{one}' is not understood: see rlframe {argv[0]} --help")
    arguments.overrides = rest
    return arguments


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr)
