"""SchedulerKit over every registered scheduler and sampler."""

from __future__ import annotations

import pytest

from rlframe.host.host import PluginHost
from rlframe.testing.scheduler_kit import SchedulerKit


def test_every_registered_scheduler_is_tried():
    names = {cls.scheduler for cls in (TestSync, TestOneStepOff, TestAsync)}
    assert set(PluginHost().load().components("scheduler")) == names


class TestSync(SchedulerKit):
    scheduler = "sync"


class TestOneStepOff(SchedulerKit):
    scheduler = "one-step-off"
    bound = 1
    idle_share = 0.05


class TestAsyncBoundZero(SchedulerKit):
    scheduler = "async"
    options = {"staleness": 0}


class TestAsync(SchedulerKit):
    scheduler = "async"
    bound = 1
    idle_share = 0.05


class TestAsyncAbort(SchedulerKit):
    scheduler = "async"
    options = {"staleness": 3, "on_update": "abort"}
    bound = 3
    idle_share = 0.05


class TestAsyncDrain(SchedulerKit):
    scheduler = "async"
    options = {"staleness": 2, "on_update": "drain"}
    bound = 2
    idle_share = 0.05


SAMPLERS = sorted(PluginHost().load().components("sampler"))


@pytest.mark.parametrize("sampler", SAMPLERS)
class TestAsyncSamplers(SchedulerKit):
    scheduler = "async"
    bound = 4
    options: dict[str, object] = {}

    @pytest.fixture(autouse=True)
    def _choose(self, sampler, monkeypatch):
        monkeypatch.setattr(type(self), "options", {"staleness": 4, "sampler": sampler})
