"""``rlframe report``: what runs left behind, as one HTML page that needs nothing else.

Reading a run (``runs``), what a section is made of (``section``, ``html``), the page (``page``).
Sections are components of kind ``section``: what the page shows is plugins' business.
"""

from rlframe.report.html import embed, figure, table, text
from rlframe.report.page import make_page, plotting_library
from rlframe.report.runs import RunRecord, Series, read_run
from rlframe.report.section import Section

__all__ = [
    "RunRecord",
    "Section",
    "Series",
    "embed",
    "figure",
    "make_page",
    "plotting_library",
    "read_run",
    "table",
    "text",
]
