"""Lightning's loggers behind ours: files in the run's folder, samples, a resume, all offline."""

from __future__ import annotations

import csv
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlframe.errors import ConfigError
from rlframe.recording.summary import write_summary

pytest.importorskip("lightning")

from rlframe_plugins.loggers.lightning import remembered, table  # noqa: E402
from rlframe_plugins.loggers.lightning_files import CSVLogger, TensorBoardLogger  # noqa: E402
from rlframe_plugins.loggers.lightning_services import MLflowLogger, WandbLogger  # noqa: E402

CONFIG = SimpleNamespace(to_dict=lambda: {"steps": 5, "optim": {"lr": 0.1}, "logger": ["x"]})
ROWS = [
    {"group_id": 0, "prompt": "1|1=", "response": "a\n<b>", "reward": 0.5, "reward/exact": 0.5},
    {"group_id": 1, "prompt": [{"role": "user", "content": "é"}], "response": "", "reward": None},
]


def started(logger, run_dir: Path, first_step: int = 0):
    run_dir.mkdir(parents=True, exist_ok=True)
    logger.start(str(run_dir), CONFIG, 5, first_step)
    return logger


def ended(logger, run_dir: Path, status: str = "finished") -> None:
    write_summary(run_dir, {"status": status})
    logger.close()
    logger.close()


def test_a_table_has_every_column():
    columns, cells = table(ROWS)
    assert columns == ["group_id", "prompt", "response", "reward", "reward/exact"]
    assert cells[0] == [0, "1|1=", "a\n<b>", 0.5, 0.5]
    assert cells[1] == [1, '[{"role": "user", "content": "é"}]', "", None, None]
    mixed = table([{"answer": 1, "right": True}, {"answer": "x", "right": None}])[1]
    assert mixed == [["1", "true"], ["x", None]]


def test_an_id_is_made_once(tmp_path):
    first = remembered(tmp_path / "a" / "id")
    assert first == remembered(tmp_path / "a" / "id") != remembered(tmp_path / "b" / "id")


# --- csv ------------------------------------------------------------------------------------------


def read_csv(run_dir: Path) -> list[dict]:
    with (run_dir / "csv" / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_csv_has_a_row_a_step_at_once(tmp_path):
    logger = started(CSVLogger(), tmp_path)
    logger.log(1, {"a/b": 0.1})
    assert read_csv(tmp_path) == [{"step": "1", "a/b": "0.1"}]
    logger.log(2, {"a/b": 0.25, "val/x": math.nan})
    logger.samples(2, ROWS)
    assert read_csv(tmp_path)[1] == {"step": "2", "a/b": "0.25", "val/x": "nan"}
    ended(logger, tmp_path)
    assert len(read_csv(tmp_path)) == 2


@pytest.mark.filterwarnings("error")
def test_csv_goes_on_after_a_resume(tmp_path):
    logger = started(CSVLogger(), tmp_path)
    for step in range(5):
        logger.log(step, {"x": 0.1 * step, **({"late": 1.0} if step == 4 else {})})
    with (tmp_path / "csv" / "metrics.csv").open("a") as file:
        file.write("0.5")
    again = started(CSVLogger(), tmp_path, first_step=2)
    assert [row["step"] for row in read_csv(tmp_path)] == ["0", "1", "2"]
    again.log(3, {"x": 7.0, "new": 2.0})
    ended(again, tmp_path)
    rows = read_csv(tmp_path)
    assert [row["step"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["x"]) for row in rows] == [0.0, 0.1, 0.2, 7.0]
    assert rows[3]["new"] == "2.0"


def test_csv_loses_nothing_when_it_is_killed_while_it_starts(tmp_path, monkeypatch):
    logger = started(CSVLogger(), tmp_path)
    logger.log(1, {"x": 1.0})
    logger.log(2, {"x": 2.0})
    import lightning.pytorch.loggers as theirs

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(theirs.CSVLogger, "log_metrics", killed)
        with pytest.raises(KeyboardInterrupt):
            started(CSVLogger(), tmp_path, first_step=2)
    again = started(CSVLogger(), tmp_path, first_step=2)
    again.log(3, {"x": 3.0})
    assert [row["step"] for row in read_csv(tmp_path)] == ["1", "2", "3"]


# --- tensorboard ----------------------------------------------------------------------------------


def events(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    run_dir = tmp_path / "a run"
    logger = started(TensorBoardLogger(), run_dir)
    logger.log(1, {"critic/rewards/mean": 0.5, "n": 3})
    logger.samples(1, ROWS)
    found = events(run_dir / "tensorboard")
    assert [(e.step, e.value) for e in found.Scalars("critic/rewards/mean")] == [(1, 0.5)]
    ended(logger, run_dir)
    found = events(run_dir / "tensorboard")
    text = found.Tensors("samples/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| 0 | 1&#124;1= | a<br>&lt;b&gt; | 0.5 | 0.5 |" in text
    assert "steps" in (run_dir / "tensorboard" / "hparams.yaml").read_text()
    assert [p.name for p in run_dir.iterdir()].count("tensorboard") == 1


def test_tensorboard_drops_what_a_resume_does_again(tmp_path):
    pytest.importorskip("tensorboard")
    logger = started(TensorBoardLogger(), tmp_path)
    for step in range(1, 6):
        logger.log(step, {"x": float(step)})
    again = started(TensorBoardLogger(), tmp_path, first_step=3)
    again.log(4, {"x": 40.0})
    ended(again, tmp_path)
    found = [(e.step, e.value) for e in events(tmp_path / "tensorboard").Scalars("x")]
    assert found == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_tensorboard_writes_where_it_is_told(tmp_path):
    pytest.importorskip("tensorboard")
    config = TensorBoardLogger.Config(dir=str(tmp_path / "all" / "one"))
    logger = started(TensorBoardLogger(config), tmp_path / "run")
    logger.log(1, {"x": 1.0})
    ended(logger, tmp_path / "run")
    assert events(tmp_path / "all" / "one").Scalars("x")[0].value == 1.0
    assert not (tmp_path / "run" / "tensorboard").exists()


# --- mlflow ---------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_mlflow(tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    run_dir = tmp_path / "a run"
    logger = started(MLflowLogger(), run_dir)
    for step in (1, 2, 3):
        logger.log(step, {"critic/rewards/mean": step / 4, "bad": math.nan})
    logger.samples(2, ROWS)
    ended(logger, run_dir, "stopped: SIGTERM")
    client = MlflowClient(f"sqlite:///{run_dir}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("rlframe")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    assert run.data.tags["mlflow.runName"] == "a run"
    assert run.data.params["optim/lr"] == "0.1"

    again = started(MLflowLogger(), run_dir, first_step=2)
    assert client.get_run(run.info.run_id).info.status == "RUNNING"
    again.log(3, {"critic/rewards/mean": 9.0})
    again.samples(2, ROWS[:1])
    again.samples(4, ROWS[:1])
    ended(again, run_dir)
    (same,) = client.search_runs([experiment.experiment_id])
    assert same.info.run_id == run.info.run_id
    assert same.info.status == "FINISHED"
    history = client.get_metric_history(same.info.run_id, "critic/rewards/mean")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5), (3, 0.75), (3, 9.0)]
    names = [one.path for one in client.list_artifacts(same.info.run_id, "samples")]
    assert names == ["samples/step-000002.json", "samples/step-000004.json"]
    (file,) = run_dir.rglob("step-000002.json")
    assert len(json.loads(file.read_text())["data"]) == 1
    assert sorted(p.name for p in run_dir.iterdir()) == ["mlflow", "summary.json"]


# --- wandb ----------------------------------------------------------------------------------------


@pytest.mark.timeout(240)
def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    before = os.environ.get("WANDB_MODE")
    options = WandbLogger.Config(project="p", offline=True, tags=("a",))
    ids = []
    for first_step in (0, 2):
        logger = started(WandbLogger(options), tmp_path, first_step)
        run = logger._logger.experiment
        assert run.offline
        assert run.project == "p"
        ids.append(run.id)
        logger.log(first_step + 1, {"critic/rewards/mean": 0.5})
        logger.samples(first_step + 1, ROWS)
        assert run.summary["trainer/global_step"] == first_step + 1
        assert run.summary["critic/rewards/mean"] == 0.5
        ended(logger, tmp_path)
    assert ids[0] == ids[1] == (tmp_path / "wandb" / "rlframe-run-id").read_text()
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
    assert len(list((tmp_path / "wandb").rglob("samples*.table.json"))) == 2
    assert os.environ.get("WANDB_MODE") == before


# --- all ------------------------------------------------------------------------------------------


def test_what_cannot_start_is_one_line(tmp_path, monkeypatch):
    def broken(self, run_dir, config, first_step):
        raise OSError("no\nroute")

    monkeypatch.setattr(CSVLogger, "open", broken)
    logger = CSVLogger()
    with pytest.raises(ConfigError, match="CSVLogger cannot start: OSError: no route"):
        started(logger, tmp_path)
    logger.close()


@pytest.mark.parametrize(
    ("made", "field"),
    [(lambda: WandbLogger.Config(project=""), "project"), (lambda: MLflowLogger.Config(""), "exp")],
)
def test_ranges(made, field):
    with pytest.raises(ValueError, match=field):
        made()
