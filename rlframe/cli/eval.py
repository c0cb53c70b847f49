"""``rlframe eval MODEL|RUN --data URI``: how good a model is, with intervals."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from rlframe.cli.parser import CliParser, add_eval_flags, asked_flags, say
from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from rlframe.host.host import current_host

__all__ = ["asked_of", "evaluate", "is_run", "policy_of"]

_CONFIG_YAML, _CONFIG_JSON, _MANIFEST = "config.yaml", "config.json", "manifest.json"


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate and print. Raises ConfigError before a model is loaded."""
    if arguments.help:
        parser = CliParser(prog="rlframe eval", add_help=False)
        add_eval_flags(parser)
        print(parser.format_help() + "\nkey=value sets any option: rlframe fit --help lists them.")
        return 0
    if not arguments.target or "=" in arguments.target:
        raise ConfigError("eval needs a model or a run first: rlframe eval MODEL|RUN --data URI")
    if arguments.model is not None:
        raise ConfigError("--model is the first word here: rlframe eval MODEL|RUN --data URI")
    target = Path(arguments.target).expanduser()
    run = target if is_run(target) else None
    asked = asked_of(arguments, run)
    loaded = load_config(current_host(), asked)
    for note in loaded.notes:
        say(f"rlframe: note: {note}")
    from rlframe.models.paths import find_model

    find_model("MODEL", loaded.config.model.path)
    from rlframe.evaluating import evaluate as evaluation

    options = evaluation.EvalOptions(
        samples=arguments.samples,
        temperature=arguments.temperature,
        limit=arguments.limit,
        threshold=arguments.threshold,
        answer=arguments.answer,
        save=Path(arguments.save).expanduser() if arguments.save else None,
    )
    config = loaded.config
    if arguments.data is None:
        if config.data.validate is None:
            raise ConfigError("there is no data.validate to evaluate on: name some with --data URI")
        held_out = dataclasses.replace(config.data, train=config.data.validate)
        config = dataclasses.replace(config, data=held_out)
    policy = policy_of(target) if run is not None else None
    report = evaluation.evaluate(config, current_host(), options, policy=policy, say=say)
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print("\n".join(report.lines()))
    return 0


def is_run(path: Path) -> bool:
    """A run's folder, or a snapshot in one; a model's folder has no config.yaml of ours."""
    run = (path / _CONFIG_YAML).is_file() and (path / _CONFIG_JSON).is_file()
    return run or (path / _MANIFEST).is_file()


def asked_of(arguments: argparse.Namespace, run: Path | None) -> Asked:
    """The config of a run, or the defaults for a model, under what was asked for."""
    flags = asked_flags(arguments)
    files = list(arguments.config)
    if run is None:
        flags["model"] = arguments.target
    else:
        from rlframe.recording.run_dir import config_file

        files.insert(0, config_file(run))
    # Nothing is logged: what the run's loggers and callbacks need may be gone.
    values: dict[str, list[str]] = {"logger": [], "callback": []}
    return Asked(files, arguments.overrides, flags, values)


def policy_of(target: Path) -> Path:
    """The policy in a snapshot, or in the newest one of a run. Raises SnapshotError."""
    from rlframe.errors import SnapshotError
    from rlframe.snapshots.snapshot import SnapshotStore, load_snapshot

    if (target / _MANIFEST).is_file():
        return load_snapshot(target).path / "policy"
    found = SnapshotStore(target).latest()
    if found is None:
        raise SnapshotError(f"{target} has no snapshot yet: it is written at run.save_every steps")
    return found.path / "policy"
