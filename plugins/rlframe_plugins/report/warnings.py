"""Figures that look wrong, each with what to try."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe.report import RunRecord, Section, table, text
from rlframe_plugins.report.checks import CHECKS, Finding, find

__all__ = ["Warnings"]

_WATCHED = ("actor/", "critic/", "val/")


class Warnings(Section):
    """A card for each warning of each run; the limits and their reasons below."""

    title, order = "Warnings", 20
    style = """
.warning{border-left:4px solid var(--warn);background:var(--warnback);border-radius:6px;
padding:.6rem .9rem;margin:.6rem 0}
.warning h3{margin:0 0 .2rem}.warning p{margin:.2rem 0}
.warning ul{margin:.3rem 0 0;padding-left:1.2rem}
.fine{color:var(--good)}
"""

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        cards = []
        for run in runs:
            cards += [_card(run, finding) for finding in find(run)]
            cards += _holes(run)
        if not cards:
            found = any(run.rows for run in runs)
            words = "No figure is out of its bounds." if found else "There are no figures to judge."
            cards = [f'<p class="{"fine" if found else "note"}">{words}</p>']
        return "".join(cards) + _limits()


def _card(run: RunRecord, finding: Finding) -> str:
    check = finding.check
    tries = "".join(f"<li>{text(one)}</li>" for one in check.advice)
    return (
        f'<div class="warning"><h3>{text(check.name)}</h3>'
        f"<p><b>{text(run.name)}</b>: <code>{text(check.metric)}</code> is {text(finding.words)}. "
        f"<span class='note'>{text(check.reason)}</span></p>What to try:<ul>{tries}</ul></div>"
    )


def _holes(run: RunRecord) -> list[str]:
    """One card for everything that was NaN or infinite."""
    names = [n for n in run.metrics if n.startswith(_WATCHED) and run.holes(n)]
    if not names:
        return []
    words = ", ".join(f"{name} at {run.holes(name)} steps" for name in names[:6])
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [
        f'<div class="warning"><h3>Figures are not finite</h3><p><b>{text(run.name)}</b>: '
        f"{text(words + more)} were NaN or infinite.</p>What to try:<ul><li>a lower optim.lr</li>"
        "<li>model.dtype=float32</li><li>a reward that is bounded</li></ul></div>"
    ]


def _limits() -> str:
    rows = [
        (c.name, c.metric, f"{'below' if c.below else 'above'} {c.shown.format(c.limit)}", c.reason)
        for c in CHECKS
    ]
    head = ("warning", "metric", "where it is", "why there")
    return f"<details><summary>All limits</summary>{table(head, rows)}</details>"
