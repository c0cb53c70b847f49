from __future__ import annotations

from types import SimpleNamespace

import pytest

from rlframe.errors import ConfigError, SnapshotError
from rlframe.interfaces.loop import Callback
from rlframe.recording.callbacks import CallbackError, CallbackList

VERBS = {
    "on_fit_start": (),
    "on_step_start": (),
    "on_step_end": ({"a": 1.0},),
    "on_validation_end": ({"a": 1.0},),
    "on_snapshot_saved": ("path",),
    "on_exception": (ValueError("x"),),
    "on_fit_end": (),
}
LAST = ("on_exception", "on_fit_end")


class Notes(Callback):
    """Notes what it is told; raises in ``bad``."""

    def __init__(self, log: list, name: str, bad: str = "") -> None:
        super().__init__()
        self.state: dict = {}
        for verb in VERBS:
            setattr(self, verb, self._noting(log, name, verb, bad))

    def _noting(self, log, name, verb, bad):
        def told(*arguments):
            log.append((name, verb, *arguments))
            if verb == bad:
                raise ValueError("broken")

        return told

    def state_dict(self) -> dict:
        return self.state

    def load_state_dict(self, state) -> None:
        self.state = dict(state)


def test_every_verb_of_the_interface_is_passed_on():
    own = {name for name in vars(Callback) if name.startswith("on_")}
    assert own == set(VERBS)
    assert own <= set(vars(CallbackList))


@pytest.mark.parametrize("verb", VERBS)
def test_all_are_told_in_order(verb):
    log: list = []
    callbacks = CallbackList([Notes(log, "a"), Notes(log, "b")])
    getattr(callbacks, verb)("run", *VERBS[verb])
    assert log == [("a", verb, "run", *VERBS[verb]), ("b", verb, "run", *VERBS[verb])]


@pytest.mark.parametrize("verb", VERBS)
def test_an_exception_names_the_callback_and_the_verb(verb):
    log: list = []
    callbacks = CallbackList([Notes(log, "a", bad=verb), Notes(log, "b")], ["mine", "other"])
    with pytest.raises(CallbackError, match=rf"'mine' raised in {verb}: ValueError: broken"):
        getattr(callbacks, verb)("run", *VERBS[verb])
    assert [name for name, *_ in log] == (["a", "b"] if verb in LAST else ["a"])


def test_states_are_kept_by_name():
    callbacks = CallbackList([Notes([], "a"), Notes([], "b"), Notes([], "c")])
    assert list(callbacks.callbacks) == ["Notes", "Notes-2", "Notes-3"]
    callbacks.callbacks["Notes-2"].state = {"n": 3}
    state = callbacks.state_dict()
    assert state == {"Notes-2": {"n": 3}}
    again = CallbackList([Notes([], "a"), Notes([], "b")])
    again.load_state_dict(state)
    assert again.callbacks["Notes-2"].state == {"n": 3}
    with pytest.raises(SnapshotError, match=r"callback 'Notes-2'.*it has: Notes"):
        CallbackList([Notes([], "a")]).load_state_dict(state)


def test_a_config_names_callbacks():
    class Plain(Callback):
        pass

    selected = SimpleNamespace(name="plain", config=3, load=lambda: Plain)
    more = Plain()
    callbacks = CallbackList.from_config([selected], [more])
    assert callbacks.callbacks["plain"].config == 3
    assert callbacks.callbacks["Plain"] is more
    wrong = SimpleNamespace(name="odd", config=3, load=lambda: lambda config: "x")
    with pytest.raises(ConfigError, match="'odd' is str"):
        CallbackList.from_config([wrong])
