"""The config of each run, and every key in which they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlframe.report import RunRecord, Section, table, text

__all__ = ["Options", "differences"]


class Options(Section):
    """Differences as a table, then each config whole."""

    title, order = "Config", 80

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        shown = [run for run in runs if run.config]
        if not shown:
            return ""
        parts = []
        if len(shown) > 1:
            rows = differences([run.config for run in shown])
            words = table(["option", *(run.name for run in shown)], rows)
            parts.append(f"<h3>Differences</h3>{words if rows else '<p>None.</p>'}")
        parts += [_whole(run) for run in shown]
        return "".join(parts)


def differences(configs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Dotted keys whose values are not all equal, with the values; "-" where a config has none."""
    flat = [dict(_leaves(config)) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    lines = [[key, *(one.get(key, "-") for one in flat)] for key in keys]
    return [line for line in lines if len(set(line[1:])) > 1]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{place}")
    else:
        yield path, str(value)


def _whole(run: RunRecord) -> str:
    lines = "\n".join(f"{key}={value}" for key, value in _leaves(run.config))
    version = run.placement.get("rlframe")
    by = f", written by rlframe {version}" if version else ""
    return f"<details><summary>{text(run.name + by)}</summary><pre>{text(lines)}</pre></details>"
