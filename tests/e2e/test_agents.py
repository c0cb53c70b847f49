"""Agents trained by whole runs: recipes, a short program, what is left when all is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rlframe
from rlframe.cli.main import main

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "templates/rlframe_templates/recipes"
TINY = "pkg:rlframe_templates/models/tiny"

AGENT = """
from openai import AsyncOpenAI

class Agent:
    async def run(self, client, row) -> float:
        messages, good = [{"role": "user", "content": row["prompt"]}], 0
        for _ in range(2):
            answer = await AsyncOpenAI().chat.completions.create(
                model="gpt-5", messages=messages, temperature=0.2, max_tokens=3)
            message = answer.choices[0].message
            messages += [message, {"role": "user", "content": row["prompt"]}]
            good += any(letter in "13579" for letter in message.content)
        return good / 2
"""

HANGS = """
import os, time

class Hangs:
    def reset(self, answer: str):
        with open(answer, "a") as file:
            file.write(f"{os.getpid()} {os.getppid()}\\n")
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass

    def reward(self):
        return 0.0
"""


def questions(folder, **columns):
    path = folder / "questions.jsonl"
    rows = [{"prompt": f"{n}+{n}=", "answer": "1", **columns} for n in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{path}"


def figures(run):
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def small(folder, **more):
    given = {
        "steps": 1,
        "run": {"dir": str(folder), "name": "run", "save_every": 0, "trace_every": 1},
        "logger": ["jsonl"],
        "cluster": {"name": "inline", "threads": 1},
        "data.prompts_per_step": 2,
        "algo.samples_per_prompt": 2,
    }
    return given | more


@pytest.mark.parametrize("recipe", ["tiny_guess", "tiny_calculator"])
def test_the_recipes_run(recipe, tmp_path):
    options = small(tmp_path, **{"run.validation_prompts": 4})
    done = rlframe.fit(config=RECIPES / f"{recipe}.yaml", **options)
    (*_, last) = figures(done.run_dir)
    assert last["env/turns"] >= 1
    assert last["val/env/turns"] >= 1
    assert "reward/env/mean" in last
    lines = [json.loads(line) for path in Path(done.run_dir, "traces").iterdir()
             for line in path.read_text().splitlines()]  # fmt: skip
    assert len(lines) == 4
    for line in lines:
        assert line["reward"] == line["reward_parts"]["env"]
        for segment in line["segments"]:
            assert len(segment["response_ids"]) == len(segment["response_mask"])
        assert len(line["turns"]) == line["figures"]["turns"]
        if recipe == "tiny_guess":
            tools = [tool["tool"] for turn in line["turns"] for tool in turn.get("tools", [])]
            assert set(tools) <= {"guess"}


def test_a_program_of_fifteen_lines_is_trained_unchanged(tmp_path, capsys):
    """OpenAI's own client, made by the program itself; the command of docs/agents.md."""
    pytest.importorskip("openai", reason="the package openai is not installed")
    assert len([line for line in AGENT.splitlines() if line.strip()]) <= 15
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    command = [
        "fit", "--env", f"{agent}:Agent", "--model", TINY, "--data", questions(tmp_path), "steps=2",
        "data.prompts_per_step=2", "algo.samples_per_prompt=2", "rollout.max_new_tokens=4",
        f"run.dir={tmp_path}", "run.name=run", "run.trace_every=1", "cluster.threads=1",
        "logger=[jsonl]",
    ]  # fmt: skip
    assert main(command) == 0
    steps = [line for line in figures(tmp_path / "run") if "env/turns" in line]
    assert [line["env/turns"] for line in steps] == [2.0, 2.0]
    assert all(0.0 <= line["reward/env/mean"] <= 1.0 for line in steps)
    assert all(line["actor/grad_norm"] >= 0.0 for line in steps)
    for path in (tmp_path / "run/traces").iterdir():
        for trace in map(json.loads, path.read_text().splitlines()):
            (row,) = trace["segments"]
            assert 1 <= sum(row["response_mask"]) <= 6
    words = ["chat", str(tmp_path / "run"), "--once", "1+1=", "--plain", "--temperature", "0"]
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.strip()


def alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def test_nothing_outlives_a_driver_that_is_killed(tmp_path):
    """Even environments that hang, with the exception that tells them so swallowed."""
    (tmp_path / "hangs.py").write_text(HANGS)
    pids = tmp_path / "pids"
    command = [sys.executable, "-m", "rlframe", "fit", "--env", f"{tmp_path}/hangs.py:Hangs",
               "--model", TINY, "--data", questions(tmp_path, answer=str(pids)), "steps=1",
               "data.prompts_per_step=2", "algo.samples_per_prompt=2", f"run.dir={tmp_path}",
               "cluster.threads=1"]  # fmt: skip
    driver = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 8)
        known = {int(word) for word in pids.read_text().split()}
        assert len(known) == 5
        assert all(map(alive, known))
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
    until(lambda: not any(map(alive, known)))
