"""``rlframe config``: the config that would run, as YAML, with where each value came from."""

from __future__ import annotations

import argparse
import sys

from rlframe.cli.fit import asked, load
from rlframe.cli.helptext import print_options
from rlframe.config.render import render
from rlframe.host.host import current_host

__all__ = ["config"]


def config(arguments: argparse.Namespace) -> int:
    """Print the config."""
    if arguments.help:
        return print_options(current_host(), asked(arguments), "config")
    sys.stdout.write(render(load(arguments)))
    return 0
