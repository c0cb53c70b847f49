"""The schedulers, samplers and tail policies that rlframe ships."""

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
    *(
        Component("tail", name, f"rlframe_plugins.schedulers.tails:{cls}", summary=summary)
        for name, cls, summary in (
            ("wait", "Wait", "every response is waited for"),
            ("deadline", "Deadline", "a response ends after so many seconds"),
            ("early-stop", "EarlyStop", "more samples a prompt, the first ones are taken"),
            ("partial", "Partial", "more groups, slow ones continue under the next weights"),
            ("defer", "Defer", "more groups, slow ones are put off to steps of their own"),
        )
    ),
)
