"""``rlframe.fit`` where others call it: notebooks, threads, scripts, spawned processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rlframe
from tests.e2e.small import letters, make_model, make_questions, options

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder with ünusual 'names'")
    return make_model(folder / "my model"), make_questions(folder / "my questions.jsonl")


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory):
    """What the run learns when it is called plainly."""
    return weights(rlframe.fit(**quiet(tmp_path_factory.mktemp("plain"), inputs)).run_dir)


def quiet(folder: Path, inputs, **more) -> dict:
    rollout = {"name": "torch", "max_new_tokens": 4, "batch_invariant": True}
    return options(folder, *inputs, rollout=rollout, optim={"lr": 1e-2}, **more)


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    (snapshot,) = (run_dir / "snapshots").iterdir()
    found = sorted((snapshot / "policy").glob("*.safetensors"))
    assert found
    return {f"{file.name}/{n}": t for file in found for n, t in load_file(file).items()}


def assert_same(found, expected) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_paths_with_spaces_and_quotes(inputs, expected, tmp_path):
    done = rlframe.fit(**quiet(tmp_path / "where it's kept", inputs))
    assert done.run_dir == tmp_path / "where it's kept" / "runs" / "run"
    assert_same(weights(done.run_dir), expected)


def test_twice_in_one_process(inputs, expected, tmp_path):
    first = rlframe.fit(**quiet(tmp_path / "one", inputs, seed=5))
    assert any(not torch.equal(t, expected[n]) for n, t in weights(first.run_dir).items())
    assert_same(weights(rlframe.fit(**quiet(tmp_path / "two", inputs)).run_dir), expected)


def test_after_a_run_that_failed(inputs, expected, tmp_path):
    def broken(response):
        raise ValueError("mine")

    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(rlframe.RewardError, match="mine"):
        rlframe.fit(**quiet(tmp_path / "one", inputs) | {"reward": broken})
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert_same(weights(rlframe.fit(**quiet(tmp_path / "two", inputs)).run_dir), expected)


def test_inside_a_running_event_loop(inputs, expected, tmp_path):
    """A notebook's cell runs inside one."""

    async def cell():
        before = asyncio.get_running_loop()
        done = rlframe.fit(**quiet(tmp_path, inputs))
        assert asyncio.get_running_loop() is before
        await asyncio.sleep(0)
        return done

    assert_same(weights(asyncio.run(cell()).run_dir), expected)


def test_in_a_thread(inputs, expected, tmp_path):
    """Signals belong to the main thread: they are left alone."""
    found: list = []
    handler = signal.getsignal(signal.SIGINT)

    def work():
        try:
            found.append(rlframe.fit(**quiet(tmp_path, inputs)))
        except BaseException as error:  # noqa: BLE001 - handed to the test
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=120)
    assert isinstance(found[0], rlframe.fit_api.Fit), found
    assert signal.getsignal(signal.SIGINT) is handler
    assert_same(weights(found[0].run_dir), expected)


def test_relative_paths_and_a_resume_from_elsewhere(inputs, expected, tmp_path, monkeypatch):
    model, questions = inputs
    monkeypatch.chdir(model.parent)
    chosen = quiet(tmp_path, (model.name, questions.name), steps=1)
    run = rlframe.fit(
        **chosen | {"run": {"dir": str(tmp_path), "save_every": 1, "keep": 1}}
    ).run_dir
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert rlframe.fit(resume=run, reward=letters, steps=2).run_dir == run
    assert_same(weights(run), expected)
    assert list(elsewhere.iterdir()) == []


SCRIPT = """
import json, multiprocessing, sys
import rlframe
from rlframe import Algorithm, ops


class Mine(Algorithm):
    def advantages(self, batch):
        return {"advantages": ops.group_mean_baseline(batch)}

    def policy_loss(self, out, batch):
        return -batch["advantages"] * out.logprobs


def mine(response):
    return float(len(set(response)))


def main(steps, resume):
    options = json.loads(sys.argv[1])
    return rlframe.fit(Mine, reward=mine, resume=resume, **options | {"steps": steps})


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn").Process(target=main, args=(1, None))
    spawn.start()
    spawn.join()
    print("spawned", spawn.exitcode)
    done = main(2, "auto")
    print(json.dumps(dict(done.summary)))
"""


@pytest.mark.timeout(280)
def test_a_script_with_its_own_classes_a_spawned_child_and_no_home(inputs, tmp_path):
    """The child trains a step; the parent, where classes are ``__main__``'s too, goes on."""
    script = tmp_path / "my script.py"
    script.write_text(SCRIPT)
    here = tmp_path / "here"
    here.mkdir()
    model, questions = inputs
    chosen = options(tmp_path, model, questions)
    for name in ("reward", "algo", "steps"):
        del chosen[name]
    chosen["run"] = {"dir": "runs", "name": "run", "save_every": 1}
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("XDG_", "HF_HOME"))}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(chosen)],
        cwd=here,
        env={**kept, "HOME": "/dev/null/nobody", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "spawned 0" in lines
    assert json.loads(lines[-1])["steps"] == 2
    figures = (here / "runs" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in figures] == [1, 2]
    assert [p.name for p in here.iterdir()] == ["runs"]


def test_a_folder_that_cannot_be_written_is_one_line(inputs, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(rlframe.ConfigError, match=r"no run can be written in .*Set run\.dir"):
        rlframe.fit(**quiet(tmp_path, inputs) | {"run": {"dir": str(blocked / "runs")}})


def test_the_product_forks_nothing():
    """A fork after torch was used breaks on macOS and with CUDA; only a test kit does it."""
    folders = ("rlframe", "algorithms", "strategies", "plugins", "templates")
    forks = [ROOT / "rlframe" / "testing" / "dist.py"]
    # Programs that are started anew, and fork before they have torch: sandboxes, environments.
    forks.append(ROOT / "plugins" / "rlframe_plugins" / "envs" / "tools" / "zygote.py")
    for path in (p for folder in folders for p in (ROOT / folder).rglob("*.py")):
        if path not in forks and path.parent.name != "sandbox":
            text = path.read_text(encoding="utf-8")
            assert "os.fork(" not in text, path
            assert '"fork"' not in text, path
