"""``rlframe plugins``: what is installed, what it offers, what is broken. Imports no component."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rlframe.host.components import Component
from rlframe.host.host import PluginInfo, current_host
from rlframe.host.packages import missing_hint

__all__ = ["plugins"]


def plugins(arguments: argparse.Namespace) -> int:
    """List plugins as text or JSON."""
    host = current_host()
    described = [_describe(info) for info in host.plugins]
    if arguments.json:
        print(json.dumps(described, indent=2))
        return 0
    for plugin in described:
        print(f"{plugin['plugin']} ({plugin['distribution'] or 'no package'} {plugin['version']})")
        if plugin["error"]:
            print(f"  not loaded: {plugin['error']}")
        elif not plugin["components"]:
            print("  (no components: defaults, commands or other hooks)")
        for one in plugin["components"]:
            print(f"  {one['kind']:<12} {one['name']:<14} {one['hint'] or one['summary']}")
    for line in host.duplicates():
        print(f"conflict: {line}")
    return 0


def _describe(info: PluginInfo) -> dict[str, Any]:
    return {
        "plugin": info.plugin,
        "version": info.version,
        "distribution": info.distribution,
        "error": info.error,
        "components": [_component(component) for component in info.components],
    }


def _component(component: Component) -> dict[str, Any]:
    hint = missing_hint(component)
    return {
        "kind": component.kind,
        "name": component.name,
        "summary": component.summary,
        "available": hint is None,
        "hint": hint,
    }
