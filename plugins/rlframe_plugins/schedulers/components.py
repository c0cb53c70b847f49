"""The schedulers and samplers that rlframe ships."""

from __future__ import annotations

from rlframe import Component

__all__ = ["SCHEDULERS"]

SCHEDULERS = (
    Component(
        "scheduler",
        "sync",
        "rlframe_plugins.schedulers.sync:SyncScheduler",
        summary="collect, learn, publish in turn",
    ),
    Component(
        "scheduler",
        "one-step-off",
        "rlframe_plugins.schedulers.one_step_off:OneStepOffScheduler",
        summary="the next rollout overlaps this update",
    ),
    Component(
        "scheduler",
        "async",
        "rlframe_plugins.schedulers.stream:AsyncScheduler",
        summary="a stream of groups with a bound on staleness",
    ),
    *(
        Component("sampler", name, f"rlframe_plugins.schedulers.samplers:{cls}", summary=summary)
        for name, cls, summary in (
            ("in-order", "InOrder", "the earliest draws that have ended"),
            ("freshest", "Freshest", "groups of the newest weights"),
            ("windowed", "Windowed", "the earliest draws of a window, slow ones waited for"),
        )
    ),
)
