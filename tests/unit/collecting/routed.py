"""A client of a rollout that generates nothing and routes as it is told."""

from __future__ import annotations


class Routed:
    """``counters`` and ``gauges`` are what its router says."""

    def __init__(self):
        self.counters, self.gauges = {}, {}

    def routed(self):
        return dict(self.counters), dict(self.gauges)
