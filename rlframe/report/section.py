"""One part of the page: derive from :class:`Section` and offer it as a component ``section``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rlframe.report.runs import RunRecord

__all__ = ["Section"]


class Section(ABC):
    """A heading of the page and what stands below it.

    Example::

        class Lengths(Section):
            title, order = "Lengths", 35

            def html(self, runs):
                found = runs[0].series("response_length/max")
                return figure([{"x": found.steps, "y": found.values}], "longest", unit="tokens")
    """

    title: ClassVar[str] = ""
    """Heading, and the word in the page's menu."""
    order: ClassVar[int] = 1000
    """Sections stand in this order. Ours have 10 to 80."""
    script: ClassVar[str] = ""
    """JavaScript that runs once when the page is open; ``report.colour(n)`` is the n-th colour,
    ``report.draw(element, traces, layout)`` a chart of Plotly in the page's theme."""
    style: ClassVar[str] = ""
    """CSS rules. ``--ink``, ``--paper``, ``--faint``, ``--line`` and ``--mark`` are the colours."""

    config: None

    def __init__(self, config: None = None) -> None:
        self.config = config

    @abstractmethod
    def html(self, runs: Sequence[RunRecord]) -> str:
        """What stands below the heading, as HTML; empty where these runs have nothing of it.

        Escape what is not yours by ``rlframe.report.text`` or ``rlframe.report.embed``.
        """
