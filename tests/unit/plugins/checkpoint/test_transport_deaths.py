"""A replica that dies while a version travels to it is left out, however few the retries."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from rlframe.errors import SyncError
from tests.unit.plugins.checkpoint.fake_group import FakeGroup
from tests.unit.plugins.checkpoint.test_transport import RESHARDERS, SOURCE, of, pools


class Dying(FakeGroup):
    """Its second member dies in the first fetch; ``known`` says whether that is known then."""

    gone, known = False, True

    @property
    def away(self) -> frozenset[int]:
        return frozenset([1]) if self.gone and self.known else frozenset()

    def call(self, method: str, *args: Any) -> Future[Any]:
        if method == "fetch_weights" and not self.gone:
            self.gone = True
            future: Future[Any] = Future()
            future.set_exception(SyncError("a rank of the exchange is gone"))
            return future
        if self.gone:
            self.members = self.members[:1]
        return super().call(method, *args)


@pytest.mark.parametrize("known", [True, False])
def test_a_death_is_no_retry(known: bool, tmp_path: Path) -> None:
    trainers, replicas = pools()
    engine = of(tmp_path, "disk", retries=0)
    targets = Dying("rollout", replicas)
    targets.known = known
    plan = RESHARDERS[0].plan(*engine.layouts(SOURCE, replicas[0].layout(SOURCE)))
    engine.prepare(plan, FakeGroup("policy", trainers), targets)
    if not known:
        with pytest.raises(SyncError, match="gone"):
            engine.publish(1)
        assert replicas[0].version == -1
        return
    stats = engine.publish(1)
    assert "without 1 ranks that died" in stats.notes[0]
    assert [one.version for one in replicas] == [1, -1]
