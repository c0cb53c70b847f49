"""Finding plugins by entry point, guarded: a broken one never breaks another or a command.

Errors are kept; ``rlframe plugins`` shows them, and so does every "unknown name".
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Any

import pluggy

from rlframe.deprecations import renamed, warn_of_hooks
from rlframe.errors import ConfigError, PluginError, nearest, unknown_name
from rlframe.host import hookspecs
from rlframe.host.components import WORDS, Component

__all__ = [
    "GROUP",
    "PluginHost",
    "PluginInfo",
    "blocked_by_environment",
    "current_host",
    "use_host",
]

GROUP = "rlframe"
"""Entry-point group in which plugins are found."""

_ENVIRONMENT = "RLFRAME_NO_PLUGINS"


@dataclass
class PluginInfo:
    """One plugin as found; ``error`` says why it is not there."""

    plugin: str
    version: str
    distribution: str
    error: str | None = None
    components: list[Component] = field(default_factory=list)


@dataclass(frozen=True)
class _Found:
    name: str
    version: str
    distribution: str
    entry: EntryPoint


def blocked_by_environment() -> frozenset[str]:
    """Names in ``RLFRAME_NO_PLUGINS``, separated by commas or blanks."""
    return frozenset(os.environ.get(_ENVIRONMENT, "").replace(",", " ").split())


class PluginHost:
    """The plugins of this process and what they offer.

    ``blocked`` names plugins (or whole distributions) that are not imported; a name that matches
    nothing raises ConfigError in :meth:`load`, except where it comes from the environment.
    """

    def __init__(self, blocked: Iterable[str] = ()) -> None:
        self._asked = frozenset(blocked)
        self._blocked = self._asked | blocked_by_environment()
        self._manager = pluggy.PluginManager("rlframe")
        self._manager.add_hookspecs(hookspecs)
        self.plugins: list[PluginInfo] = []

    @property
    def hook(self) -> Any:
        """Call a hook of all plugins: ``host.hook.rlframe_step_end(...)``."""
        return self._manager.hook

    def load(self) -> PluginHost:
        """Import every plugin that is installed and not blocked. Returns self."""
        found = list(self._discover())
        known = {f.name for f in found} | {f.distribution for f in found}
        for name in sorted(self._asked - known):
            raise ConfigError(unknown_name("plugin", name, known) + " (--no-plugin)")
        for one in found:
            if self._blocked & {one.name, one.distribution}:
                how = "--no-plugin" if self._asked & {one.name, one.distribution} else _ENVIRONMENT
                error = f"blocked by {how}"
                self.plugins.append(PluginInfo(one.name, one.version, one.distribution, error))
            else:
                self._load(one)
        return self

    def register(
        self, plugin: object, name: str, distribution: str = "", version: str = ""
    ) -> PluginInfo:
        """Add a plugin by hand (a test, a notebook); its error is kept as for an installed one."""
        info = PluginInfo(name, version, distribution)
        self.plugins.append(info)
        try:
            _check_version(plugin)
            self._manager.register(plugin, name)
            self._check_hooks(plugin)
            warn_of_hooks(plugin, name)
            info.components = self._components(plugin, info)
        except (Exception, SystemExit) as error:
            info.error = _describe(error)
            if self._manager.is_registered(plugin) and self._manager.get_plugin(name) is plugin:
                self._manager.unregister(plugin)
        return info

    def components(self, kind: str) -> dict[str, Component]:
        """Everything of one kind by name, in order of names. A name offered twice is left out."""
        offers = sorted((c for c in self._offers() if c.kind == kind), key=lambda c: c.name)
        names = [c.name for c in offers]
        return {c.name: c for c in offers if names.count(c.name) == 1}

    def find(self, kind: str, name: str) -> Component:
        """The component of that kind and name.

        Raises PluginError: unknown name with the nearest, or a name that two plugins offer.
        """
        offers = [c for c in self._offers() if (c.kind, c.name) == (kind, name)]
        if len(offers) == 1:
            return offers[0]
        if offers:
            raise PluginError(self._duplicate(offers))
        row = renamed("component", f"{kind} {name}")
        if row is not None:
            row.warn()
            return self.find(kind, row.instead.rpartition(" ")[2])
        word = WORDS.get(kind, kind)
        known = {c.name for c in self._offers() if c.kind == kind}
        raise PluginError(unknown_name(word, name, known) + self._broken())

    def duplicates(self) -> list[str]:
        """One message for every kind and name that is offered twice."""
        seen: dict[tuple[str, str], list[Component]] = {}
        for component in self._offers():
            seen.setdefault((component.kind, component.name), []).append(component)
        return [self._duplicate(offers) for offers in seen.values() if len(offers) > 1]

    def defaults(self) -> Path | None:
        """The YAML file of default values, or None when no plugin offers one.

        Raises PluginError when two plugins do, or when the file is not there.
        """
        offers = []
        for impl in self.hook.rlframe_defaults.get_hookimpls():
            offers.append((impl.plugin_name, Path(impl.function())))
        if len(offers) > 1:
            names = " and ".join(f"'{name}'" for name, _ in offers)
            raise PluginError(
                f"plugins {names} both offer defaults: block one with --no-plugin {offers[-1][0]}"
            )
        for name, path in offers:
            if not path.is_file():
                raise PluginError(f"defaults of plugin '{name}' are not there: {path}")
        return offers[0][1] if offers else None

    def call_guarded(self, hook: str, **arguments: Any) -> None:
        """Call a hook plugin by plugin; one that raises keeps its error and stops no other."""
        for impl in getattr(self.hook, hook).get_hookimpls():
            try:
                impl.function(*(arguments[name] for name in impl.argnames))
            except (Exception, SystemExit) as error:
                for info in self.plugins:
                    if info.plugin == impl.plugin_name:
                        info.error = f"{hook}: {_describe(error)}"

    # --- inside -------------------------------------------------------------------------------

    def _offers(self) -> Iterator[Component]:
        for info in self.plugins:
            yield from info.components

    def _discover(self) -> Iterator[_Found]:
        """Entry points of our group; the first distribution of a name on the path counts."""
        seen: set[str] = set()
        taken: set[str] = set()
        for distribution in distributions():
            try:
                entries = _entries(distribution)
                if not entries:
                    continue
                name, version = distribution.metadata["Name"], distribution.version
                if not name:
                    raise ValueError("its metadata has no name")
            except Exception as error:
                label = _label(distribution)
                self.plugins.append(PluginInfo(label, "", label, _describe(error)))
                continue
            if name.lower() in seen:
                continue
            seen.add(name.lower())
            for entry in entries:
                plugin = entry.name if entry.name not in taken else f"{name}:{entry.name}"
                taken.add(plugin)
                yield _Found(plugin, version, name, entry)

    def _load(self, found: _Found) -> None:
        try:
            module = found.entry.load()
        except (Exception, SystemExit) as error:
            info = PluginInfo(found.name, found.version, found.distribution, _describe(error))
            self.plugins.append(info)
            return
        self.register(module, found.name, found.distribution, found.version)

    def _check_hooks(self, plugin: object) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            known = [n for n in vars(self.hook) if getattr(self.hook, n).has_spec()]
            unknown = [n for n in dir(plugin) if n.startswith("rlframe_") and n not in known]
            hints = [f"'{n}'. Did you mean '{nearest(n, known)}'?" for n in unknown]
            raise PluginError(f"unknown hook {' '.join(hints) or error}") from error
        for name in vars(self.hook):
            function = getattr(plugin, name, None)
            own = getattr(function, "__module__", None) == getattr(plugin, "__name__", "")
            if own and callable(function) and not hasattr(function, "rlframe_impl"):
                raise PluginError(f"'{name}' is not marked: put @rlframe.hookimpl above it")

    def _components(self, plugin: object, info: PluginInfo) -> list[Component]:
        components: list[Component] = []
        for impl in self.hook.rlframe_components.get_hookimpls():
            if impl.plugin is not plugin:
                continue
            offered = impl.function()
            if not isinstance(offered, Sequence):
                raise PluginError(f"rlframe_components returned {type(offered).__name__}, no list")
            for one in offered:
                if not isinstance(one, Component):
                    raise PluginError(f"rlframe_components offers {one!r}, which is no Component")
                components.append(replace(one, distribution=info.distribution, plugin=info.plugin))
        return components

    def _duplicate(self, offers: list[Component]) -> str:
        who = " and ".join(f"'{c.plugin}' ({c.distribution or 'no package'})" for c in offers)
        names = [c.plugin if c.plugin != offers[0].plugin else c.distribution for c in offers[1:]]
        return (
            f"{offers[0].word} '{offers[0].name}' is offered by plugins {who}: "
            f"block one with --no-plugin {names[0]}"
        )

    def _broken(self) -> str:
        broken = [f"plugin '{p.plugin}': {p.error}" for p in self.plugins if p.error]
        return f" Not loaded: {'; '.join(broken)}." if broken else ""


_current: list[PluginHost] = []


def current_host() -> PluginHost:
    """The host of this process: the one that the command line loaded, or every plugin there is."""
    if not _current:
        use_host(PluginHost().load())
    return _current[0]


def use_host(host: PluginHost) -> None:
    """Make this the host of the process."""
    _current[:] = [host]


def _entries(distribution: Distribution) -> list[EntryPoint]:
    text = distribution.read_text("entry_points.txt")
    if not text or f"[{GROUP}]" not in text:
        return []
    return list(distribution.entry_points.select(group=GROUP))


def _label(distribution: Distribution) -> str:
    path = getattr(distribution, "_path", None)
    return Path(str(path)).name.split("-")[0] if path is not None else "unknown"


def _check_version(plugin: object) -> None:
    version = getattr(plugin, "RLFRAME_API_VERSION", 1)
    if version != hookspecs.API_VERSION:
        raise PluginError(
            f"it was written for version {version!r} of the plugin API, this rlframe has version "
            f"{hookspecs.API_VERSION}: install a release of it for this version"
        )


def _describe(error: BaseException) -> str:
    """One line: the type, the message, and where it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, PluginError):
        return text
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"
