"""Python, the packages that rlframe asks for, plugins. Nothing is imported but their metadata."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rlframe.doctor.finding import Finding
from rlframe.doctor.site import Site
from rlframe.host.host import current_host
from rlframe.host.packages import missing_hint

__all__ = ["packages", "plugins", "python"]


def python(site: Site) -> Iterator[Finding]:
    """The interpreter."""
    yield Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")


def packages(site: Site) -> Iterator[Finding]:
    """Each package that rlframe needs: there, and new enough."""
    from packaging.requirements import Requirement

    if not site.requirements:
        yield Finding("fail", "packages", "rlframe is not installed", "pip install -e .")
    for text in site.requirements:
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield _package(wanted.name, f"{wanted.name}{wanted.specifier}")


def _package(name: str, text: str) -> Finding:
    from packaging.requirements import Requirement

    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding("fail", name, "not installed", f"pip install '{text}'")
    if Requirement(text).specifier.contains(found, prereleases=True):
        return Finding("ok", name, found)
    return Finding("fail", name, f"{found}, which is not {text}", f"pip install '{text}'")


def plugins(site: Site) -> Iterator[Finding]:
    """Plugins that do not load, names given twice, how many components can be used."""
    host = current_host()
    for info in host.plugins:
        if info.error:
            blocked = info.error.startswith("blocked")
            remedy = "" if blocked else f"fix it, or block it with --no-plugin {info.plugin}"
            yield Finding("warn", "plugin", f"{info.plugin}: {info.error}", remedy)
    for conflict in host.duplicates():
        yield Finding("warn", "plugin", conflict)
    offers = [component for info in host.plugins for component in info.components]
    ready = sum(missing_hint(component) is None for component in offers)
    yield Finding("ok", "components", f"{ready} of {len(offers)} available, see rlframe plugins")
