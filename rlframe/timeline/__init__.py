"""When what ran: spans of every process of a run, kept in its folder, drawn as a timeline."""

from rlframe.timeline.analysis import PoolUse, Report, busy_s, critical_path, report, use_of_pools
from rlframe.timeline.file import CONTROLLER, NAME, TimelineFile, Written, read_timeline
from rlframe.timeline.recording import Timeline
from rlframe.timeline.spans import Busy, ProcessSpans, Span, SpanLog, now

__all__ = [
    "CONTROLLER",
    "NAME",
    "Busy",
    "PoolUse",
    "ProcessSpans",
    "Report",
    "Span",
    "SpanLog",
    "Timeline",
    "TimelineFile",
    "Written",
    "busy_s",
    "critical_path",
    "now",
    "read_timeline",
    "report",
    "use_of_pools",
]
