"""The values of ``tuned`` in a defaults file hold for the default model and for no other."""

from __future__ import annotations

import pytest

from rlframe.config.load import Asked, load_config
from rlframe.errors import ConfigError
from tests.unit.config import fakes

TUNED = fakes.DEFAULTS + "tuned:\n  steps: 7\n  optim: {lr: 0.5}\n  rollout: {max_new_tokens: 3}\n"


@pytest.fixture
def load(tmp_path):
    host = fakes.make_host(tmp_path, TUNED)

    def loader(*dotlist, text="", **flags):
        (tmp_path / "run.yaml").write_text(text)
        return load_config(host, Asked([tmp_path / "run.yaml"], dotlist, flags)).config

    return loader


def tuned(config):
    return config.steps, config.optim.lr, config.rollout.config.max_new_tokens


def test_they_hold_for_the_default_model(load):
    assert tuned(load()) == (7, 0.5, 3)
    assert tuned(load(model=load().model.path)) == (7, 0.5, 3)


def test_what_is_said_wins_over_them(load):
    assert tuned(load("steps=9", text="optim: {lr: 0.25}")) == (9, 0.25, 3)


@pytest.mark.parametrize(
    "said",
    [{"model": "other"}, {"text": "model: {path: other}"}],
    ids=["flag", "file"],
)
def test_another_model_has_the_plain_defaults(load, said):
    assert tuned(load(**said)) == (100, 1e-6, 24)


def test_tuned_must_be_sections(tmp_path):
    host = fakes.make_host(tmp_path, fakes.DEFAULTS + "tuned: 3\n")
    with pytest.raises(ConfigError, match=r"tuned \(defaults:\d+\): expected sections below it"):
        load_config(host, Asked())
