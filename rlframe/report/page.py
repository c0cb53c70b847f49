"""The page: sections in their order, with the plotting library, styles and scripts inside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from rlframe.errors import PluginError
from rlframe.report.html import text
from rlframe.report.runs import RunRecord
from rlframe.report.section import Section

__all__ = ["make_page", "plotting_library"]

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""The page may load nothing, whatever is written in it."""


def plotting_library() -> str:
    """The JavaScript of Plotly, as its package holds it. Raises PluginError without the package."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise PluginError(
            "rlframe report draws with the package 'plotly', which is not installed: "
            "pip install 'rlframe[report]'"
        )
    path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise PluginError(
            f"the package 'plotly' has no {path} ({error.strerror}): "
            "pip install --upgrade 'rlframe[report]'"
        ) from error


def make_page(
    title: str, runs: Sequence[RunRecord], sections: Sequence[Section], library: str
) -> tuple[str, list[str]]:
    """The page as text that can be written as UTF-8, and what could not be drawn.

    A section that raises says so in its place and leaves the others alone.
    """
    parts, menu, faults = [], [], list[str]()
    scripts, styles = [_asset("page.js")], [_asset("page.css")]
    for section in sorted(sections, key=lambda one: (one.order, one.title)):
        try:
            body = section.html(runs)
        except Exception as error:  # a plugin's section: the others are still worth having
            faults.append(f"section '{section.title}': {type(error).__name__}: {error}")
            body = f'<p class="note">This could not be drawn: {text(faults[-1])}</p>'
        if not body:
            continue
        name = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
        menu.append(f'<a href="#{name}">{text(section.title)}</a>')
        parts.append(f'<section id="{name}"><h2>{text(section.title)}</h2>{body}</section>')
        scripts += [section.script] if section.script else []
        styles += [section.style] if section.style else []
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{text(title)}</title><style>{''.join(styles)}</style></head><body>"
        f'<header><h1>{text(title)}</h1><button id="theme" type="button">theme: auto</button>'
        f"<nav>{''.join(menu)}</nav></header><main>{''.join(parts)}</main>"
        f"<script>{library}</script>{''.join(_script(one) for one in scripts)}</body></html>\n"
    )
    # Lone surrogates, which JSON may hold, cannot be written; NUL is no character of a page.
    return page.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8"), faults


def _script(code: str) -> str:
    return f"<script>{code}</script>"


def _asset(name: str) -> str:
    return files("rlframe.report").joinpath(name).read_text(encoding="utf-8")
