"""What a user is told where a method's own code fails: on the controller, and in a worker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rlframe import Algorithm
from rlframe.asking import MethodError, ask, ask_mapping
from rlframe.calling.worker import Worker
from rlframe.errors import BatchError, TrainingError, WorkerError
from rlframe.interfaces.strategy import RankInfo
from rlframe.interfaces.transfer import LocalTransfer


class Faulty(Algorithm):
    """Its loss fails two calls further down."""

    def advantages(self, batch: Any) -> Any:
        raise LookupError("no advantage")

    def policy_loss(self, out: Any, batch: Any) -> Any:
        return self._inner()

    def _inner(self) -> Any:
        return 1 / 0

    def accept(self, group: Any) -> bool:
        raise BatchError("its own words")

    def scalars(self) -> Any:
        return None


def test_the_method_that_failed_is_named_with_file_and_line():
    with pytest.raises(TrainingError) as caught:
        ask(Faulty(), "advantages", None)
    text = "Faulty.advantages raised LookupError: no advantage "
    assert str(caught.value).startswith(f"{text}({__file__}:")
    assert str(caught.value).endswith("--debug shows the traceback")


def test_the_method_inside_that_is_the_users_own_is_named():
    with pytest.raises(MethodError, match=r"Faulty\.policy_loss raised ZeroDivisionError"):
        ask(Faulty(), "loss", "policy", None, None)


def test_what_rlframe_says_itself_is_left_as_it_is():
    with pytest.raises(BatchError, match="^its own words$"):
        ask(Faulty(), "accept", None)
    with pytest.raises(TrainingError, match=r"Faulty\.scalars returned NoneType: return a dict"):
        ask_mapping(Faulty(), "scalars")


class Engine:
    def update(self) -> Any:
        return ask(Faulty(), "loss", "policy", None, None)

    def infer(self) -> Any:
        raise LookupError("no output")


@pytest.mark.parametrize(
    ("method", "said", "frame"),
    [
        ("update", "update: Faulty.policy_loss raised ZeroDivisionError: division", "_inner"),
        ("infer", "infer: LookupError: no output", "infer"),
    ],
)
def test_in_a_worker_it_says_role_rank_and_host_with_the_traceback(method, said, frame):
    worker = Worker(RankInfo(3, 4, host="far"), LocalTransfer())
    worker.host("critic", Engine)
    with pytest.raises(WorkerError) as caught:
        worker.call("critic", method)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (error.role, error.rank, error.host) == ("critic", 3, "far")
        assert error.message.startswith(said)
        assert "--debug" not in error.message
        assert f"in {frame}" in error.remote
        assert str(error).startswith(f"role 'critic', rank 3 on far: {said}")
