"""``rlframe export``: the policy of a run's newest snapshot as a Hugging Face directory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rlframe.errors import ConfigError, SnapshotError
from rlframe.recording.run_dir import config_file, read_run_config
from rlframe.snapshots.manifest import MANIFEST
from rlframe.snapshots.snapshot import Snapshot, SnapshotStore, load_snapshot

__all__ = ["export"]

_POLICY = "policy"
_NEEDED = ("seed", "steps", "model", "optim", "roles", "pools")
"""Sections that make the policy; what else a run used (rewards, data) may be gone by now.

Its strategy is left out: one process reads what any strategy of any size has saved.
"""


def export(run: str | Path, out_dir: str | Path, *, adapter: bool = False) -> Path:
    """Write the policy of a run (or of one of its snapshots) where ``from_pretrained`` finds it.

    ``adapter`` writes the low-rank adapters alone, as peft reads them. The directory appears whole
    or not at all. Raises ConfigError (no run, directory in use, no adapters) and SnapshotError (no
    snapshot, damaged).
    """
    source, target = Path(run).expanduser(), Path(out_dir).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is there and not empty: name a new folder")
    snapshot = _find(source)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ConfigError(f"nothing can be written in {target.parent}: {error.strerror}") from error
    try:
        _write_policy(source, snapshot, fresh, adapter)
        if target.exists():
            target.rmdir()
        fresh.chmod(0o755)
        fresh.rename(target)
    except OSError as error:
        raise SnapshotError(f"{target} could not be written: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _find(source: Path) -> Snapshot:
    config_file(source)
    if (source / MANIFEST).is_file():
        return load_snapshot(source)
    snapshot = SnapshotStore(source).latest()
    if snapshot is None:
        raise SnapshotError(f"{source} has no snapshot yet: it is written at run.save_every steps")
    return snapshot


def _write_policy(source: Path, snapshot: Snapshot, out_dir: Path, adapter: bool) -> None:
    from rlframe.config.load import Asked, load_config
    from rlframe.fit_api import build_policy
    from rlframe.host.host import current_host

    folder = snapshot.path / _POLICY
    if not folder.is_dir():
        raise SnapshotError(f"{snapshot.path} has no policy")
    kept = read_run_config(source)
    values = {key: kept[key] for key in _NEEDED if key in kept}
    own = kept.get("roles", {}).get(_POLICY, {})
    values["roles"] = {_POLICY: {k: v for k, v in own.items() if k != "strategy"}}
    # A snapshot that does not say so is of a language model.
    kind = snapshot.state().get("run", {}).get("kinds", {}).get(_POLICY, "policy")
    engine = build_policy(load_config(current_host(), Asked(values=values)).config, kind)
    try:
        engine.load(folder)
        write = engine.export_adapters if adapter else engine.export
        write(out_dir)
    finally:
        engine.close()
