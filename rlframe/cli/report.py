"""``rlframe report RUN [RUN ...]``: what runs did, as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from rlframe.cli.parser import say
from rlframe.errors import ConfigError
from rlframe.host.host import PluginHost, current_host
from rlframe.host.packages import missing_hint
from rlframe.host.resolve import resolve
from rlframe.report import RunRecord, Section, make_page, plotting_library, read_run
from rlframe.report.runs import name_apart
from rlframe.snapshots.durable import replace_text

__all__ = ["report"]


def report(arguments: argparse.Namespace) -> int:
    """Write the page; 0 also where a part of a run is missing, which the page says."""
    runs = _read(arguments.runs)
    library = plotting_library()
    sections = _sections(current_host())
    title = (
        runs[0].name
        if len(runs) == 1
        else f"{len(runs)} runs: " + ", ".join(run.name for run in runs)
    )
    page, faults = make_page(title, runs, sections, library)
    out = Path(arguments.out or (runs[0].path if len(runs) == 1 else Path()) / "report.html")
    try:
        replace_text(out.expanduser(), page)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror}. Use --out FILE") from error
    for fault in faults:
        say(f"rlframe: note: {fault}")
    print(f"wrote {out}: {len(page.encode()) / 2**20:.1f} MiB, open it in a browser")
    return 0


def _read(paths: list[str]) -> list[RunRecord]:
    """Each run once."""
    found = {run.path.resolve(): run for run in map(read_run, paths)}
    runs = list(found.values())
    name_apart(runs)
    return runs


def _sections(host: PluginHost) -> list[Section]:
    """Every section that is offered; what one needs and lacks is told, and it is left out."""
    made = []
    for name, component in host.components("section").items():
        hint = missing_hint(component)
        if hint:
            say(f"rlframe: note: {hint}")
            continue
        made.append(resolve(host, "section", name).value())
    return made
