"""Running a fit: the one road for the command line, scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlframe.config import Config
from rlframe.errors import ConfigError
from rlframe.snapshots.snapshot import load_snapshot

if TYPE_CHECKING:
    from rlframe.algorithm import Algorithm, ModelKind
    from rlframe.host.host import PluginHost
    from rlframe.interfaces.model import ModelEngine
    from rlframe.recording.run_dir import RunPlace

__all__ = ["Fit", "build_policy", "fit", "resume_files", "run"]


@dataclass(frozen=True)
class Fit:
    """A finished run: its folder and what ``summary.json`` says."""

    run_dir: Path
    summary: Mapping[str, Any]


def fit(
    algorithm: Algorithm | type[Algorithm] | str | None = None,
    *,
    model: str | Mapping[str, Any] | None = None,
    data: str | Mapping[str, Any] | None = None,
    reward: Callable[..., Any] | str | Mapping[str, Any] | None = None,
    config: str | Path | Sequence[str | Path] = (),
    resume: str | Path | None = None,
    **options: Any,
) -> Fit:
    """Train, exactly as ``rlframe fit`` does.

    ``algorithm``, ``reward`` and any selector may be a name, ``file.py:Class``, a class, an
    instance or (for rewards) a function; ``model`` and ``data`` are paths or whole sections;
    ``options`` are sections (``optim={"lr": 1e-5}``) or top-level values (``steps=50``).
    Raises RlframeError with one clear message.
    """
    from rlframe.config.load import Asked, load_config
    from rlframe.host.host import current_host

    given = {"algo": algorithm, "model": model, "data": data, "reward": reward}
    flags, objects = {}, {}
    for name, value in given.items():
        if isinstance(value, str):
            flags[name] = value
        elif isinstance(value, Mapping):
            options[name] = value
        elif value is not None and name in ("model", "data"):
            raise ConfigError(f"{name} is {type(value).__name__}: give a path, or a section's dict")
        elif value is not None:
            objects[name] = value
    files = [config] if isinstance(config, str | Path) else list(config)
    files = [*resume_files(resume), *files]
    asked = Asked(files=files, flags=flags, objects=objects, values=options)
    host = current_host()
    return run(load_config(host, asked).config, host, resume=resume)


def resume_files(resume: str | Path | None) -> list[Path]:
    """The config file that a resumed run continues with, under what else is said."""
    from rlframe.recording.run_dir import config_file

    return [] if resume is None or str(resume) == "auto" else [config_file(resume)]


def run(config: Config, host: PluginHost, *, resume: str | Path | None = None) -> Fit:
    """Build, resume where asked, and run to the end.

    ``resume`` is a run, a snapshot, or "auto" (the newest run with this name, or a new one).
    A finished run that already has its steps is left as it is.
    Raises ``Stopped`` after SIGINT, SIGTERM or SIGHUP, once the state is saved.
    """
    from rlframe.anchor import anchored
    from rlframe.models.paths import check_models
    from rlframe.recovery.lives import live
    from rlframe.weights.connect import check_learnable

    check_learnable(config)
    check_models(config)
    from rlframe.recording.run_dir import open_run
    from rlframe.recording.summary import read_summary

    config = anchored(config, host)
    place = open_run(config, resume)
    try:
        if not _is_finished(place, config.steps):
            live(place, config, host)
        else:
            print(
                f"the run {place.path} is finished at step {config.steps}: "
                f"give steps=N above {config.steps} to go on"
            )
        return Fit(place.path, read_summary(place.path))
    finally:
        place.close()


def _is_finished(place: RunPlace, steps: int) -> bool:
    """Whether the run came to its end and its snapshot has all ``steps``."""
    from rlframe.recording.files import SUMMARY
    from rlframe.recording.summary import read_summary

    if place.snapshot is None or not (place.path / SUMMARY).is_file():
        return False
    whole = load_snapshot(place.snapshot).step == steps
    return whole and read_summary(place.path)["status"] == "finished"


def build_policy(config: Config, kind: ModelKind = "policy") -> ModelEngine:
    """The policy's engine alone, on one rank in this process, with the head of ``kind``.

    Raises ModelError.
    """
    from rlframe.build import engine_specs
    from rlframe.interfaces.strategy import RankInfo
    from rlframe.models.paths import find_model

    find_model("model.path", config.role("policy").model.path)
    algorithm: Algorithm = config.algo.load()(config.algo.config)
    spec = engine_specs(config, algorithm, 1.0, 0)["policy"]
    spec = replace(spec, model=replace(spec.model, kind=kind))
    engine: ModelEngine = config.role("policy").engine.load()(RankInfo())
    engine.setup(spec)
    return engine
