"""Is the package there that a component needs, and if not, what installs it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING

from rlframe.host.components import Component

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = ["missing_hint", "missing_packages"]

_EXTRA = re.compile(r"""\s*(and)?\s*\(?\s*extra\s*==\s*["'][^"']+["']\s*\)?\s*(and)?\s*""")


def missing_packages(component: Component) -> list[str]:
    """The modules of ``requires`` that cannot be found; none of them is imported."""
    return [name for name in component.requires if not _is_there(name)]


def missing_hint(component: Component) -> str | None:
    """One line with what is missing or too old, and the command that installs it; else None."""
    missing = missing_packages(component)
    if not missing:
        return _outdated_hint(component)
    packages = ", ".join(f"'{name}'" for name in missing)
    noun = "package" if len(missing) == 1 else "packages"
    head = f"{component.word} '{component.name}' needs the {noun} {packages}"
    if not component.distribution or not component.extra:
        return f"{head}: pip install {' '.join(missing)}"
    excluded = _excluding_marker(component.distribution, component.extra)
    if excluded:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"{head}, which extra '{component.extra}' of {component.distribution} installs only "
            f"where {excluded} (this is Python {version})"
        )
    return f"{head}: pip install '{component.distribution}[{component.extra}]'"


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _outdated_hint(component: Component) -> str | None:
    """The same for a package whose version is none that the component's extra asks for."""
    if not component.distribution or not component.extra:
        return None
    for requirement in _asked(component.distribution, component.extra):
        if requirement.marker is not None and not requirement.marker.evaluate(
            {"extra": component.extra}
        ):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:  # another distribution has the module
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            return (
                f"{component.word} '{component.name}' needs {requirement.name}"
                f"{requirement.specifier}, and {found} is installed: pip install --upgrade "
                f"'{component.distribution}[{component.extra}]'"
            )
    return None


def _asked(distribution: str, extra: str) -> Iterator[Requirement]:
    """What an extra of a distribution names."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", line):
            yield requirement


def _excluding_marker(distribution: str, extra: str) -> str | None:
    """The marker by which the extra installs nothing here, without its ``extra ==`` part."""
    excluded = None
    for requirement in _asked(distribution, extra):
        marker = requirement.marker
        assert marker is not None, "the extra is in it"
        if marker.evaluate({"extra": extra}):
            return None
        excluded = _EXTRA.sub("", str(marker)).strip("() ")
    return excluded
