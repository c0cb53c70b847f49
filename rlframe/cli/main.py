"""``rlframe COMMAND``: finds plugins, parses, runs; every error of ours is one line on stderr."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

from rlframe import __version__
from rlframe.cli.doctor import add_doctor_command
from rlframe.cli.parser import (
    CliParser,
    add_chat_flags,
    add_config_flags,
    add_eval_flags,
    parse,
    say,
    take_global,
)
from rlframe.cli.timeline import add_timeline_command
from rlframe.errors import ConfigError, RlframeError
from rlframe.host.host import PluginHost, use_host

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    try:
        _check_directory()
        return _run(argv)
    except RlframeError as error:
        if debug:
            traceback.print_exc()
        say(f"rlframe: error: {error}")
        for note in getattr(error, "__notes__", ()):
            say(note)
        return error.exit_code
    except KeyboardInterrupt:
        say("rlframe: interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _check_directory() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the working directory is gone ({error.strerror}): cd to one") from error


def _run(argv: Sequence[str]) -> int:
    rest, blocked, _ = take_global(argv)
    host = PluginHost(blocked).load()
    use_host(host)
    parser, commands = _parser(host)
    if not rest:
        parser.print_help()
        return 2
    arguments = parse(parser, rest, list(commands))
    run = getattr(arguments, "run", None)
    if run is None:
        parser.print_help()
        return 2
    return int(run(arguments) or 0)


def _parser(host: PluginHost) -> tuple[CliParser, dict[str, argparse.ArgumentParser]]:
    parser = CliParser(
        prog="rlframe",
        description="Reinforcement learning for large language models.",
        epilog="--no-plugin NAME blocks a plugin; --debug shows tracebacks. "
        "rlframe fit --algo NAME --help lists the options of what is chosen. "
        "Exit codes: 0 done, 1 failed, 2 wrong command or config (nothing was started), "
        "128 + N ended by signal N, with the state saved.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rlframe {__version__}")
    subcommands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_core_commands(subcommands)
    host.call_guarded("rlframe_cli", subcommands=subcommands)
    return parser, dict(subcommands.choices)


def _add_core_commands(subcommands: argparse._SubParsersAction[CliParser]) -> None:
    for name, function, meaning in (
        ("fit", _fit, "train"),
        ("validate", _validate, "check a config and what it names; load no model"),
        ("config", _config, "print the config and where each value came from"),
    ):
        command = subcommands.add_parser(name, help=meaning, add_help=False, allow_abbrev=False)
        add_config_flags(command)
        command.set_defaults(run=function)
        if name == "fit":
            command.add_argument(
                "--resume", metavar="auto|PATH", help="go on from the last, or that, snapshot"
            )
    _add_eval(subcommands)
    add_timeline_command(subcommands)
    _add_report(subcommands)
    _add_chat(subcommands)
    plugins = subcommands.add_parser("plugins", help="list plugins, components and errors")
    plugins.add_argument("--json", action="store_true", help="as JSON")
    plugins.set_defaults(run=_plugins)
    add_doctor_command(subcommands)
    export = subcommands.add_parser("export", help="write a run's model for transformers")
    export.add_argument("run_dir", metavar="RUN", help="folder of a run, or a snapshot in it")
    export.add_argument("out_dir", metavar="DIR", help="new or empty folder to write")
    export.add_argument(
        "--adapter", action="store_true", help="write the adapters alone (model.lora), for peft"
    )
    export.set_defaults(run=_export)


def _add_eval(subcommands: argparse._SubParsersAction[CliParser]) -> None:
    command = subcommands.add_parser(
        "eval",
        help="accuracy, pass@k and maj@k of a model or run",
        add_help=False,
        allow_abbrev=False,
    )
    add_eval_flags(command)
    command.set_defaults(run=_eval)


def _add_report(subcommands: argparse._SubParsersAction[CliParser]) -> None:
    command = subcommands.add_parser(
        "report", help="one HTML page of runs: curves, warnings, samples, configs"
    )
    command.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, or a snapshot")
    command.add_argument(
        "--out", metavar="FILE", help="default: report.html in the run, or here for several"
    )
    command.set_defaults(run=_report)


def _add_chat(subcommands: argparse._SubParsersAction[CliParser]) -> None:
    command = subcommands.add_parser(
        "chat", help="talk with a model or run", add_help=False, allow_abbrev=False
    )
    add_chat_flags(command)
    command.set_defaults(run=_chat)


def _fit(arguments: argparse.Namespace) -> int:
    # A spinning OpenMP barrier takes the cores from other workers; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rlframe.cli.fit import fit

    return fit(arguments)


def _validate(arguments: argparse.Namespace) -> int:
    from rlframe.cli.fit import validate

    return validate(arguments)


def _config(arguments: argparse.Namespace) -> int:
    from rlframe.cli.config_cmd import config

    return config(arguments)


def _eval(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rlframe.cli.eval import evaluate

    return evaluate(arguments)


def _report(arguments: argparse.Namespace) -> int:
    from rlframe.cli.report import report

    return report(arguments)


def _chat(arguments: argparse.Namespace) -> int:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rlframe.cli.chat import chat

    return chat(arguments)


def _plugins(arguments: argparse.Namespace) -> int:
    from rlframe.cli.plugins import plugins

    return plugins(arguments)


def _export(arguments: argparse.Namespace) -> int:
    from rlframe.cli.export import export

    return export(arguments)


if __name__ == "__main__":
    sys.exit(main())
