"""Lightning callbacks in a real run: which verbs are called, and Lightning's own EarlyStopping."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rlframe
from rlframe.recording.callbacks import CallbackError
from tests.e2e.small import make_model, make_questions, options

pytest.importorskip("lightning")

from lightning.pytorch import Callback  # noqa: E402
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint  # noqa: E402

from rlframe_plugins.callbacks.lightning import LightningAdapter, LightningCallback  # noqa: E402

TOLD: list = []
PASSED_ON = (
    "setup",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_exception",
    "on_train_end",
    "on_fit_end",
    "teardown",
)


class Notes(Callback):
    """Notes every verb that is called."""

    def __init__(self, label: str = "x", fail_at: int = -1) -> None:
        self.label, self.fail_at, self.seen = label, fail_at, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        TOLD.append(("on_train_batch_end", trainer.global_step, batch_idx, self.label))
        assert outputs["critic/rewards/mean"] == pytest.approx(
            float(trainer.callback_metrics["critic/rewards/mean"])
        )
        pl_module.log("mine", batch_idx)
        assert trainer.callback_metrics["mine"] == batch_idx
        self.seen += 1
        if batch_idx == self.fail_at:
            raise ValueError("enough")

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state_dict):
        self.seen = state_dict["seen"]
        TOLD.append(("loaded", self.seen))

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["extra"] = trainer.global_step

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        TOLD.append(("checkpoint", checkpoint["extra"]))


for _verb in PASSED_ON:
    if _verb not in vars(Notes):

        def _told(self, *arguments, _verb=_verb, **named):
            TOLD.append(_verb)

        setattr(Notes, _verb, _told)


class Enough(LightningAdapter):
    def make(self):
        return EarlyStopping("val/reward/mean", mode="max", patience=1)


class Bound(LightningAdapter):
    def make(self):
        return EarlyStopping(
            "critic/rewards/mean",
            stopping_threshold=-1.0,
            mode="max",
            check_on_train_epoch_end=True,
        )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_model(folder / "model"), make_questions(folder / "questions.jsonl")


@pytest.fixture(autouse=True)
def _fresh():
    for module in loaded():
        module.TOLD.clear()


def by_target(**more) -> list:
    return [{"name": "lightning", "target": f"{__file__}:Notes", "options": more}]


def loaded() -> list:
    """This file as ``file.py:Class`` loads it: a module of its own."""
    here = Path(__file__)
    modules = [m for n, m in sys.modules.items() if n.startswith("_rlframe_file_")]
    return [module for module in modules if Path(module.__file__) == here]


def told() -> list:
    (module,) = loaded()
    return module.TOLD


def test_the_verbs_in_order_and_a_resume(inputs, tmp_path):
    """8 prompts, 4 a step: two steps are an epoch."""
    run = rlframe.fit(**options(tmp_path, *inputs, steps=3, callback=by_target(label="y"))).run_dir
    start, end = "on_train_batch_start", "on_train_batch_end"
    assert told() == [
        *("setup", "on_fit_start", "on_train_start", "on_train_epoch_start"),
        *(start, (end, 1, 0, "y"), start, (end, 2, 1, "y")),
        *("on_train_epoch_end", "on_train_epoch_start", start, (end, 3, 2, "y")),
        *("on_train_epoch_end", "on_train_end", "on_fit_end", "teardown"),
    ]
    told().clear()
    rlframe.fit(resume=run, steps=4)
    assert told()[:3] == ["setup", ("loaded", 3), ("checkpoint", 3)]
    assert (end, 4, 3, "y") in told()


def test_an_exception_reaches_the_callback_and_the_user(inputs, tmp_path):
    with pytest.raises(
        CallbackError, match="'lightning' raised in on_step_end: ValueError: enough"
    ):
        rlframe.fit(**options(tmp_path, *inputs, callback=by_target(fail_at=0)))
    assert told()[-2:] == ["on_exception", "teardown"]
    assert "on_fit_end" not in told()


def test_early_stopping_looks_at_validations(inputs, tmp_path):
    """A learning rate of 0 never improves: the second validation without a gain ends the run."""
    chosen = options(
        tmp_path,
        *inputs,
        steps=20,
        callback=[Enough],
        optim={"lr": 0.0},
        **{"data.validate": f"jsonl:{inputs[1]}", "run.validate_every": 2},
    )
    done = rlframe.fit(**chosen)
    assert done.summary["status"] == "stopped: callback EarlyStopping"
    steps = [json.loads(line)["step"] for line in (done.run_dir / "metrics.jsonl").open()]
    assert max(steps) == 2
    assert [p.name for p in (done.run_dir / "snapshots").iterdir()] == ["step-000002"]


def test_early_stopping_at_a_bound(inputs, tmp_path):
    done = rlframe.fit(**options(tmp_path, *inputs, steps=9, callback=[Bound]))
    assert done.summary["status"] == "stopped: callback EarlyStopping"
    assert done.summary["steps"] == 2


def test_a_checkpoint_callback_is_told_what_to_do(inputs, tmp_path):
    class Keeps(LightningAdapter):
        def make(self):
            return ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1)

    with pytest.raises(CallbackError, match=r"run.save_every|nothing that rlframe offers"):
        rlframe.fit(**options(tmp_path, *inputs, callback=[Keeps]))


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"target": "nope"}, rlframe.ConfigError, "target is package.module:Class"),
        ({}, rlframe.ConfigError, "target has no value"),
        ({"target": f"{__file__}:Notes", "options": {"labell": 1}}, CallbackError, "labell"),
        ({"target": f"{__file__}:by_target"}, CallbackError, "no lightning.pytorch.Callback"),
        ({"target": f"{__file__}:Note"}, CallbackError, "Did you mean 'Notes'"),
    ],
)
def test_mistakes(inputs, tmp_path, config, error, message):
    with pytest.raises(error, match=message):
        rlframe.fit(**options(tmp_path, *inputs, callback=[{"name": "lightning", **config}]))


def test_every_verb_of_lightning_is_either_called_or_listed_as_not():
    never = {
        *("on_sanity_check_start", "on_sanity_check_end", "on_train_epoch_start"),
        *("on_validation_start", "on_validation_epoch_start"),
        *("on_validation_batch_start", "on_validation_batch_end"),
        *("on_before_backward", "on_after_backward", "on_before_zero_grad"),
        *("on_before_optimizer_step",),
    }
    verbs = {n for n in vars(Callback) if n.startswith("on_") or n in ("setup", "teardown")}
    verbs = {v for v in verbs if "test" not in v and "predict" not in v}
    ours = {*PASSED_ON, "on_save_checkpoint", "on_load_checkpoint"}
    assert verbs - ours - never == set()
    assert LightningCallback.Config(target="a:b").options == {}
