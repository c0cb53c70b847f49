"""A local Ray that does not come up: new workers may find the machine less busy."""

from __future__ import annotations

import pytest

from rlframe.errors import StuckError
from rlframe_plugins.clusters.ray.session import Session

ray = pytest.importorskip("ray")
LATE = "The current node timed out during startup. This could happen because of many things."


def start(monkeypatch, text: str) -> None:
    def init(**options):
        raise Exception(text)

    monkeypatch.setattr(ray, "init", init)
    Session("", 1, show_output=False)


def test_a_ray_that_is_late_may_be_tried_again(monkeypatch):
    with pytest.raises(StuckError, match="Ray did not start on this machine") as caught:
        start(monkeypatch, LATE)
    assert caught.value.mendable


def test_another_reason_is_not_hidden(monkeypatch):
    with pytest.raises(Exception, match="^no such folder$"):
        start(monkeypatch, "no such folder")
