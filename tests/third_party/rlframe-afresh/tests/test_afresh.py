"""rlframe's kits over what this package offers."""

from __future__ import annotations

from rlframe.testing import PluginKit, RolloutKit, SchedulerKit


class TestPackage(PluginKit):
    distribution = "rlframe-afresh"


class TestAfresh(RolloutKit):
    rollout = "afresh"


class TestLlama(RolloutKit):
    rollout = "afresh"
    kind = "llama"


class TestBursts(SchedulerKit):
    scheduler = "bursts"
    bound = 1


class TestLongBursts(SchedulerKit):
    scheduler = "bursts"
    options = {"steps": 4}
    bound = 3
