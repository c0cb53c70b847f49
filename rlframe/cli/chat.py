"""``rlframe chat MODEL|RUN``: talk with it, line by line or once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlframe.cli.eval import asked_of, is_run, policy_of
from rlframe.cli.parser import CliParser, add_chat_flags, say
from rlframe.config.load import load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host

if TYPE_CHECKING:
    from rlframe.evaluating.chat import Partner

__all__ = ["chat"]

_HELP = "/new forgets what was said, /quit or the end of input leaves"


def chat(arguments: argparse.Namespace) -> int:
    """Talk. Raises ConfigError before a model is loaded."""
    if arguments.help:
        parser = CliParser(prog="rlframe chat", add_help=False)
        add_chat_flags(parser)
        print(parser.format_help() + f"\n{_HELP}. key=value sets any option, as in rlframe fit.")
        return 0
    if not arguments.target or "=" in arguments.target:
        raise ConfigError("chat needs a model or a run first: rlframe chat MODEL|RUN")
    if arguments.model is not None:
        raise ConfigError("--model is the first word here: rlframe chat MODEL|RUN")
    target = Path(arguments.target).expanduser()
    run = target if is_run(target) else None
    loaded = load_config(current_host(), asked_of(arguments, run))
    for note in loaded.notes:
        say(f"rlframe: note: {note}")
    policy = policy_of(target) if run is not None else None
    from rlframe.evaluating.chat import Partner

    with Partner(
        loaded.config,
        policy=policy,
        plain=arguments.plain,
        system=arguments.system,
        temperature=arguments.temperature,
    ) as partner:
        if arguments.once is not None:
            print(partner.say(arguments.once)[0])
            return 0
        return _talk(partner)


def _talk(partner: Partner) -> int:
    shown = sys.stdin.isatty()
    if shown:
        say(_HELP)
    while True:
        try:
            text = input("> " if shown else "")
        except EOFError:
            return 0
        if text.strip() == "/quit":
            return 0
        if text.strip() == "/new":
            partner.begin()
            continue
        answer, reason = partner.say(text)
        print(answer, flush=True)
        if reason != "stop":
            say(f"[ended by {reason}: see rollout.max_new_tokens]")
