"""The timeline of a run's devices, drawn as ``rlframe timeline`` draws it."""

from __future__ import annotations

from collections.abc import Sequence

from rlframe.report import RunRecord, Section, table, text
from rlframe.timeline import Written, report
from rlframe.timeline.picture import gantt

__all__ = ["Stages"]

_SHOWN_STEPS = 4
"""Steps of the picture: the last ones, whose pieces can be told apart."""


class Stages(Section):
    """The last steps as a picture, and over the whole run how long each pool did nothing."""

    title, order = "Stage timeline", 50

    def html(self, runs: Sequence[RunRecord]) -> str:
        """See :class:`Section`."""
        return "".join(_run(run, named=len(runs) > 1) for run in runs if run.spans)


def _run(run: RunRecord, *, named: bool) -> str:
    whole, last = report(run.spans), _last(run.spans)
    words = f"steps {last[0].step} to {max(span.step for span in last)} of {whole.steps}"
    rows = [
        (
            name,
            use.lanes,
            f"{use.busy_s:.1f}",
            f"{use.idle_s:.1f}",
            f"{use.idle:.0%}",
            _stages(use.stages),
        )
        for name, use in whole.pools.items()
    ]
    path = ", ".join(
        f"{stage} {seconds:.1f} s"
        for stage, seconds in sorted(whole.path_s.items(), key=lambda one: -one[1])[:6]
    )
    head = f"<h3>{text(run.name)}</h3>" if named else ""
    return (
        f'{head}<p class="note">The picture shows {words}; figures are of the whole run. '
        f"The run waited for: {text(path) or 'nothing'}.</p>"
        f'<div class="picture">{gantt(last, report(last))}</div>'
        + table(("pool", "lanes", "busy s", "idle s", "idle", "most of it"), rows)
    )


def _stages(stages: dict[str, float]) -> str:
    most = sorted(stages.items(), key=lambda one: -one[1])[:4]
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in most)


def _last(spans: Sequence[Written]) -> list[Written]:
    """The last steps of the last life."""
    life = max(span.life for span in spans)
    mine = [span for span in spans if span.life == life]
    steps = sorted({span.step for span in mine})[-_SHOWN_STEPS:]
    return [span for span in mine if span.step >= steps[0]]
