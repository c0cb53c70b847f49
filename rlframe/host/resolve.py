"""From what a user typed to a class: a registered name, ``file.py:Class`` or ``pkg.mod:Class``.

Nothing is imported before it is chosen; a missing package is noticed before the import.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import importlib.util
import inspect
import shutil
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rlframe.errors import PluginError, nearest
from rlframe.host.advice import file_advice, nearest_file
from rlframe.host.components import WORDS, Component
from rlframe.host.host import PluginHost
from rlframe.host.packages import missing_hint

__all__ = ["Resolved", "adapted", "load_target", "resolve", "resolve_object", "ship_file"]


@dataclass(frozen=True)
class Resolved:
    """A chosen component: ``target`` is what a worker imports, ``sha256`` that of its file."""

    kind: str
    name: str
    target: str
    value: Any
    sha256: str = ""
    component: Component | None = None
    importable: bool = True
    """False for a class or function without a name to import it by; it travels by value."""
    adapter: str = ""
    """Target of the component whose ``adapt`` makes one of the kind out of the plain class."""

    @property
    def offered(self) -> Any:
        """The component itself: ``value``, or what the adapter makes of it."""
        return adapted(self.value, self.adapter)


def resolve(host: PluginHost, kind: str, name: str) -> Resolved:
    """Import the component ``name`` of ``kind``.

    Raises PluginError: unknown name, missing package, broken module, no such class in it, or a
    class that is not of that kind.
    """
    word = WORDS.get(kind, kind)
    if name.endswith(".py"):
        raise PluginError(f"{word} '{name}': {file_advice(name, with_functions=kind == 'reward')}")
    if ":" in name:
        target = _absolute(name)
        value, sha256 = _import(target, f"{word} '{name}'")
        resolved = Resolved(kind, name, target, value, sha256, adapter=_adapter(host, kind, value))
    else:
        component = host.find(kind, name)
        hint = missing_hint(component)
        if hint:
            raise PluginError(hint)
        what = f"{word} '{name}' of plugin '{component.plugin}'"
        value, _ = _import(component.target, what)
        resolved = Resolved(kind, name, component.target, value, "", component)
    _check_kind(resolved, word)
    return resolved


def resolve_object(kind: str, value: Any, host: PluginHost | None = None) -> Resolved:
    """A class, an instance of one, or a reward function, as passed from Python.

    Raises PluginError where it is not of that kind.
    """
    is_named = inspect.isclass(value) or inspect.isroutine(value)
    named = value if is_named else type(value)
    module, name = named.__module__, named.__qualname__
    if kind == "reward" and callable(value) and not is_named:
        return Resolved(kind, named.__name__, f"{module}:{name}", value, importable=False)
    importable = module != "__main__" and "<" not in name and module in sys.modules
    adapter = _adapter(host, kind, named) if host is not None else ""
    target = f"{module}:{name}"
    resolved = Resolved(kind, named.__name__, target, named, importable=importable, adapter=adapter)
    word = WORDS.get(kind, kind)
    _check_kind(resolved, word)
    if not is_named:
        _check_instance(value, word)
    return resolved


def _check_instance(value: Any, word: str) -> None:
    """Only the class and its config go on (to workers, snapshots), so nothing else may be set."""
    cls = type(value)
    advice = f"{word} {cls.__name__}: pass the class, and put its options into a nested Config"
    try:
        twin = cls(getattr(value, "config", None))
    except Exception as error:
        raise PluginError(f"{advice} ({type(error).__name__}: {error})") from error
    state, fresh = vars(value), vars(twin)
    plain = (bool, int, float, str, bytes, type(None), tuple, list, dict, set)
    for name in sorted(state.keys() | fresh.keys() - {"config"}):
        mine, other = state.get(name), fresh.get(name)
        both_plain = isinstance(mine, plain) and isinstance(other, plain)
        if name != "config" and (type(mine) is not type(other) or (both_plain and mine != other)):
            raise PluginError(f"{advice} (its attribute '{name}' would be lost)")


def adapted(value: Any, adapter: str) -> Any:
    """What the component at ``adapter`` makes of a plain class; without one, the class itself."""
    return load_target(adapter).adapt(value) if adapter else value


def load_target(target: str, sha256: str = "") -> Any:
    """Import ``pkg.module:Class`` or ``/path/file.py:Class``, as a worker does.

    Raises PluginError when it cannot be imported, or when the file's hash is not ``sha256``.
    """
    value, found = _import(target, f"'{target}'")
    if sha256 and found != sha256:
        raise PluginError(
            f"{target.rpartition(':')[0]} is not the file that the run was started with "
            f"(sha256 {found[:12]}, not {sha256[:12]}): restore it, or start a new run"
        )
    return value


_shipped: dict[Path, Path] = {}
"""Users' files that this machine lacks or has otherwise, and the copies that stand for them."""


def ship_file(path: str, contents: bytes) -> None:
    """Have ``path`` mean these contents in this process, whatever this machine has there."""
    known = Path(path)
    if not known.is_file() or known.read_bytes() != contents:
        copy = Path(tempfile.mkdtemp(prefix="rlframe-file-")) / known.name
        copy.write_bytes(contents)
        atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
        _shipped[known] = copy


def _absolute(name: str) -> str:
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py"):
        return name
    return f"{Path(path).expanduser().resolve()}:{attribute}"


def _import(target: str, what: str) -> tuple[Any, str]:
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise PluginError(f"{what}: write 'file.py:Class' or 'package.module:Class'")
    if place.endswith(".py"):
        module, sha256 = _import_file(Path(place), what)
    else:
        module, sha256 = _import_module(place, what), ""
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise PluginError(f"{what}: {place} has no '{part}'.{_offer(value, part)}")
        value = getattr(value, part)
    return value, sha256


def _import_module(name: str, what: str) -> ModuleType:
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise PluginError(f"{what} cannot be imported: {_reason(error)}") from error


def _import_file(path: Path, what: str) -> tuple[ModuleType, str]:
    path = _shipped.get(path, path)
    if not path.is_file():
        raise PluginError(f"{what}: no file {path}{nearest_file(path)}")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    name = f"_rlframe_file_{sha256[:16]}_{path.stem.replace('-', '_')}"
    if name in sys.modules:
        return sys.modules[name], sha256
    _make_importable(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PluginError(f"{what} cannot be imported: {_reason(error, path)}") from error
    return module, sha256


def _make_importable(folder: Path) -> None:
    """Let neighbours of a user's file be imported; last on the path, so that nothing is hidden."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _reason(error: Exception, path: Path | None = None) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if path is not None and f.filename == str(path)]
    foreign = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    places = own or foreign
    where = f" ({places[-1].filename}:{places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


def _offer(module: Any, name: str) -> str:
    known = [n for n, v in vars(module).items() if inspect.isclass(v) or inspect.isfunction(v)]
    own = [n for n in known if getattr(vars(module)[n], "__module__", "") == module.__name__]
    close = nearest(name, own or known)
    hint = f" Did you mean '{close}'?" if close else ""
    return f"{hint} It has: {', '.join(sorted(own)) or 'no class'}."


_BASES = {
    "algorithm": "rlframe.algorithm:Algorithm",
    "model": "rlframe.interfaces.model:ModelEngine",
    "strategy": "rlframe.interfaces.strategy:Strategy",
    "rollout": "rlframe.interfaces.rollout:RolloutEngine",
    "reward": "rlframe.interfaces.data:Reward",
    "environment": "rlframe.interfaces.data:Environment",
    "tool-parser": "rlframe.interfaces.tools:ToolParser",
    "dataset": "rlframe.interfaces.data:Dataset",
    "scheduler": "rlframe.interfaces.loop:Scheduler",
    "tail": "rlframe.interfaces.loop:Tail",
    "sampler": "rlframe.interfaces.loop:Sampler",
    "logger": "rlframe.interfaces.loop:Logger",
    "callback": "rlframe.interfaces.loop:Callback",
    "transfer": "rlframe.interfaces.transfer:TransferEngine",
    "checkpoint": "rlframe.interfaces.checkpoint:CheckpointEngine",
    "resharder": "rlframe.interfaces.checkpoint:Resharder",
    "mapper": "rlframe.interfaces.cluster:Mapper",
    "cluster": "rlframe.interfaces.cluster:Cluster",
    "section": "rlframe.report.section:Section",
}


_OBJECTS = {"protocol": "rlframe.calling.protocol:Protocol"}
"""Kinds whose components are objects of a class."""


def _adapter(host: PluginHost, kind: str, value: Any) -> str:
    """Target of the component that adapts a plain class to its kind; empty: there is no need."""
    found = [one.target for one in host.components(kind).values() if one.adapts]
    if not found or not inspect.isclass(value) or kind not in _BASES:
        return ""
    base, _ = _import(_BASES[kind], _BASES[kind])
    return "" if issubclass(value, base) else found[0]


def _check_kind(resolved: Resolved, word: str) -> None:
    """A whole class of the kind's base, where it has one; a reward may be a function."""
    value = resolved.offered
    if resolved.kind in _OBJECTS:
        _check_object(resolved, word, _OBJECTS[resolved.kind])
        return
    if resolved.kind == "reward" and inspect.isroutine(value):
        return
    if not inspect.isclass(value):
        raise PluginError(f"{word} '{resolved.name}' is a {type(value).__name__}, not a class")
    target = _BASES.get(resolved.kind)
    if target is None:
        return
    base, _ = _import(target, target)
    if not issubclass(value, base):
        wanted = target.replace(":", ".")
        raise PluginError(f"{word} '{resolved.name}' is no {wanted}: derive it from that class")
    if inspect.isabstract(value):
        lacking = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise PluginError(f"{word} '{resolved.name}' lacks the methods {lacking}")


def _check_object(resolved: Resolved, word: str, target: str) -> None:
    base, _ = _import(target, target)
    if not isinstance(resolved.value, base):
        found, wanted = type(resolved.value).__name__, target.replace(":", ".")
        raise PluginError(f"{word} '{resolved.name}' is a {found}, not a {wanted}")
