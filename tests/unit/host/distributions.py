"""Throw-away distributions: what a stranger's installed plugin package looks like on disk."""

from __future__ import annotations

from pathlib import Path


def install(
    site: Path,
    name: str,
    entries: dict[str, str],
    modules: dict[str, str],
    *,
    version: str = "1.0",
    metadata: str = "",
) -> None:
    """Write modules and a dist-info with entry points of group ``rlframe`` into a folder."""
    site.mkdir(parents=True, exist_ok=True)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}"
    )
    lines = "\n".join(f"{key} = {value}" for key, value in entries.items())
    (info / "entry_points.txt").write_text(f"[rlframe]\n{lines}\n")
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)


def plugin(*components: str, version: str = "RLFRAME_API_VERSION = 1") -> str:
    """Source of a plugin module that offers the given ``Component(...)`` arguments."""
    offers = ", ".join(f"Component({arguments})" for arguments in components)
    return (
        "from rlframe import Component, hookimpl\n"
        f"{version}\n"
        "@hookimpl\n"
        "def rlframe_components():\n"
        f"    return [{offers}]\n"
    )
