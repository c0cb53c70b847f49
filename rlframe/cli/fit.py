"""``rlframe fit`` and ``rlframe validate``."""

from __future__ import annotations

import argparse

from rlframe.cli.helptext import print_options
from rlframe.cli.parser import asked_flags, say
from rlframe.config.load import Asked, Loaded, load_config
from rlframe.host.host import current_host

__all__ = ["asked", "fit", "load", "validate"]


def asked(arguments: argparse.Namespace) -> Asked:
    """What the flags and ``key=value`` arguments say, over the config of a run to go on with."""
    resume = getattr(arguments, "resume", None)
    files = list(arguments.config)
    if resume is not None and resume != "auto":
        from rlframe.recording.run_dir import config_file

        files.insert(0, config_file(resume))
    return Asked(files, arguments.overrides, asked_flags(arguments))


def load(arguments: argparse.Namespace) -> Loaded:
    """Load the config that was asked for; says what was left out. Raises ConfigError."""
    loaded = load_config(current_host(), asked(arguments))
    for note in loaded.notes:
        say(f"rlframe: note: {note}")
    return loaded


def fit(arguments: argparse.Namespace) -> int:
    """Train."""
    if arguments.help:
        return print_options(current_host(), asked(arguments), "fit")
    loaded = load(arguments)
    from rlframe.fit_api import run

    run(loaded.config, current_host(), resume=arguments.resume)
    return 0


def validate(arguments: argparse.Namespace) -> int:
    """Check everything that can be checked without a model."""
    if arguments.help:
        return print_options(current_host(), asked(arguments), "validate")
    loaded = load(arguments)
    from rlframe.cli.check import check_inputs

    for line in check_inputs(loaded.config, current_host()):
        print(line)
    print(f"the config is right: rlframe fit would run {loaded.config.steps} steps")
    return 0
