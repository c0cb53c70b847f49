"""The command line: what it prints, its exit codes, and one line for every mistake."""

from __future__ import annotations

import json
import sys
import types

import pytest

from rlframe.cli.main import main
from tests.unit.config import fakes
from tests.unit.host.distributions import install, plugin

DEFAULTS = fakes.DEFAULTS.replace("builtin:sums?split=train", "rows:a").replace(
    "builtin:sums?split=test", "rows:b"
)
FAKE = """
from rlframe import Component, hookimpl
from tests.unit.config import fakes

@hookimpl
def rlframe_components():
    return [Component(k, n, f"{{fakes.__name__}}:{{c}}") for k, n, c in fakes.COMPONENTS]

@hookimpl
def rlframe_defaults():
    return {path!r}
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Only the fake components are installed; the working folder is empty."""
    defaults = tmp_path / "defaults.yaml"
    defaults.write_text(DEFAULTS)
    folder = tmp_path / "site"
    source = FAKE.format(path=str(defaults))
    install(
        folder, "rlframe-fake", {"fake": "rlframe_fake_plugin"}, {"rlframe_fake_plugin": source}
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("RLFRAME_NO_PLUGINS", "rlframe")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def cli(site, capsys):
    """Run a command line; returns exit code, stdout, stderr."""

    def run(*argv):
        capsys.readouterr()
        code = main(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_without_a_command_the_help_is_shown(cli):
    code, out, _ = cli()
    assert code == 2
    for command in ("fit", "validate", "config", "plugins", "doctor", "export"):
        assert f"\n    {command} " in out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["fitt"], "unknown command 'fitt'. Did you mean 'fit'?"),
        (["fit", "--alog", "grpo"], "unknown flag '--alog'. Did you mean '--algo'?"),
        (["fit", "--algo=gpro"], "unknown algo 'gpro'."),
        (["fit", "--algo"], "--algo: expected one argument"),
        (["fit", "--algo", ""], "--algo has no value"),
        (["fit", "lr"], "'lr' is neither a flag nor key=value"),
        (["fit", "optim.lrr=1"], "unknown key 'optim.lrr'"),
        (["fit", "--config", "none.yaml"], "config file none.yaml does not exist"),
        (["fit", "--data", "rows:gone", "steps=0"], "steps must be at least 1"),
        (["config", "--no-plugin"], "--no-plugin needs the name"),
        (["config", "--no-plugin", "fak"], "unknown plugin 'fak'. Did you mean 'fake'?"),
        (["plugins", "x"], "'x' is not understood: see rlframe plugins --help"),
        (["export", "none", "out"], "there is no run none"),
        (["export", "x"], "the following arguments are required: DIR"),
        (["validate", "--data", "rows:gone"], "data 'rows:gone' is not there"),
        (["validate", "--data", "row:a"], "unknown scheme 'row'. Did you mean 'rows'?"),
        (["validate", "--data", "rows:none"], "unknown column 'prompt'. Known: question"),
        (["fit", "--model", "./none"], "model.path: there is no folder './none'."),
        (["validate", "--model", "./none"], "model.path: there is no folder './none'."),
        (["validate", "--model", "pkg:nope/x"], "there is no package 'nope'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr(cli, argv, expected):
    code, out, err = cli(*argv)
    assert expected in err
    assert err.startswith("rlframe: error: ")
    assert err.count("\n") == 1
    assert code != 0
    assert "Traceback" not in out + err


def test_debug_shows_the_traceback(cli):
    code, _, err = cli("fit", "steps=0", "--debug")
    assert code == 2
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("rlframe: error: steps must be")


def test_config_prints_what_would_run(cli, tmp_path):
    (tmp_path / "work" / "run.yaml").write_text("steps: 7\n")
    code, out, _ = cli("config", "--config", "run.yaml", "optim.lr=0.5", "--algo", "gspo")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "steps: 7 # run.yaml:1" in lines
    assert "lr: 0.5 # command line" in lines
    assert "name: gspo # command line" in lines
    (tmp_path / "work" / "again.yaml").write_text(out)
    assert cli("config", "--config", "again.yaml")[0] == 0


def test_what_is_left_out_is_said(cli, tmp_path):
    (tmp_path / "work" / "run.yaml").write_text("algo: {name: grpo, clip_ratio: 0.1}\n")
    code, _, err = cli("config", "--config", "run.yaml", "--algo", "gspo")
    assert code == 0
    assert err == (
        "rlframe: note: algo.clip_ratio=0.1 (run.yaml:1) was for 'grpo' and is left out\n"
    )


def test_validate_opens_what_the_config_names(cli, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    code, _, err = cli("validate", "--model", str(model))
    assert (code, "has no config.json" in err) == (1, True)
    (model / "config.json").write_text("{}")
    code, out, err = cli("validate", "--model", str(model), "pools.train.devices=2")
    assert (code, "pools.train asks for 2 devices, there is 1" in err) == (2, True)
    code, out, err = cli("validate", "--model", str(model), "--data", "rows:x")
    assert (code, err) == (0, "")
    assert "placement: policy in train, critic in train, rollout in train" in out
    assert "data.train: rows:x, 2 rows" in out
    assert f"model.path: {model}" in out


def test_fit_hands_the_config_and_the_host_on(cli, monkeypatch):
    calls = []
    fake = types.ModuleType("rlframe.fit_api")
    fake.run = lambda config, host, resume: calls.append((config, host, resume))
    monkeypatch.setitem(sys.modules, "rlframe.fit_api", fake)
    code, _, err = cli("fit", "--algo", "gspo", "optim.lr=0.5", "--resume", "auto", "steps=3")
    assert (code, err) == (0, "")
    ((config, host, resume),) = calls
    assert (config.algo.name, config.optim.lr, config.steps, resume) == ("gspo", 0.5, 3, "auto")
    assert host.find("algorithm", "gspo").plugin == "fake"


@pytest.mark.parametrize("command", ["fit", "validate", "config"])
def test_help_lists_every_option_of_what_is_chosen(cli, command):
    code, out, _ = cli(command, "--algo", "grpo", "--help")
    assert code == 0
    words = " ".join(out.split())
    assert "algo.clip_ratio=0.2 Half-width of the clip range, above 0. (a number)" in words
    assert "algo.style=plain plain or dr. (one of plain, dr)" in words
    assert "rollout.page=32 Tokens a page. (a whole number)" in words
    assert "optim.betas=[0.9, 0.95]" in words
    assert "model.lora.rank=0" in words
    assert "reward.answer_key=answer" in words
    assert "--strategy NAME" in words
    assert ("--resume" in words) == (command == "fit")


def test_help_follows_the_flags(cli):
    _, out, _ = cli("fit", "--algo", "gspo", "--strategy", "sharded", "-h")
    assert "algo.clip_ratio=0.0003" in out
    assert "algo.style" not in out
    assert "strategy.ranks=2" in out


def test_help_marks_values_of_the_default_model(cli, tmp_path):
    (tmp_path / "defaults.yaml").write_text(DEFAULTS + "tuned:\n  steps: 7\n  optim: {lr: 0.5}\n")
    words = " ".join(cli("fit", "optim.lr=0.25", "-h")[1].split())
    assert "steps=7 " in words
    assert "(a whole number; this is with the default model, else 100)" in words
    assert words.count("with the default model") == 1
    words = " ".join(cli("fit", "--model", "other", "-h")[1].split())
    assert "steps=100 " in words
    assert "with the default model" not in words


def test_plugins_as_json(cli, site):
    source = plugin("'rollout', 'ghost', 'ghost_mod:X', ('ghost_mod',), 'ghost', 'a ghost'")
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": source}, version="3.1")
    code, out, _ = cli("plugins", "--json")
    assert code == 0
    found = {one["plugin"]: one for one in json.loads(out)}
    assert found["acme"] == {
        "plugin": "acme",
        "version": "3.1",
        "distribution": "rlframe-acme",
        "error": None,
        "components": [
            {
                "kind": "rollout",
                "name": "ghost",
                "summary": "a ghost",
                "available": False,
                "hint": "rollout 'ghost' needs the package 'ghost_mod': "
                "pip install 'rlframe-acme[ghost]'",
            }
        ],
    }
    assert found["algorithms"]["error"] == "blocked by RLFRAME_NO_PLUGINS"
    assert found["algorithms"]["components"] == []


def test_plugins_as_text_shows_errors_and_conflicts(cli, site):
    source = plugin("'algorithm', 'grpo', 'x:Y'")
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": source})
    install(site, "rlframe-bad", {"bad": "bad_plugin"}, {"bad_plugin": "1/0"})
    install(site, "rlframe-empty", {"empty": "empty_plugin"}, {"empty_plugin": ""})
    code, out, _ = cli("plugins")
    assert code == 0
    assert "not loaded: ZeroDivisionError" in out
    assert out.count("(no components: ") == 1
    assert "rlframe-empty 1.0)\n  (no components: defaults, commands or other hooks)\n" in out
    assert "conflict: algo 'grpo' is offered by plugins" in out
    code, _, err = cli("config")
    assert code == 2
    assert "block one with --no-plugin" in err
    assert cli("config", "--no-plugin", "acme")[0] == 0


def test_a_plugins_command_runs_and_a_broken_one_does_not_disturb(cli, site):
    source = (
        "from rlframe import hookimpl\n"
        "@hookimpl\n"
        "def rlframe_cli(subcommands):\n"
        "    command = subcommands.add_parser('greet', help='say hello')\n"
        "    command.add_argument('name')\n"
        "    command.set_defaults(run=lambda a: print('hello', a.name) or 5)\n"
    )
    install(site, "rlframe-acme", {"acme": "acme_plugin"}, {"acme_plugin": source})
    broken = source.replace("command.add", "1 / 0 #")
    install(site, "rlframe-bad", {"bad": "bad_plugin"}, {"bad_plugin": broken})
    code, out, _ = cli("greet", "you")
    assert (code, out) == (5, "hello you\n")


def test_doctor_names_what_fails(cli, tmp_path):
    code, out, _ = cli("doctor")
    assert code == 0
    assert out.endswith("rlframe can run here. Next: rlframe fit\n")
    for subject in ("python", "torch", "gloo", "threads", "run folder", "disk"):
        assert f" {subject} " in out
    (tmp_path / "work" / "file").write_text("")
    code, out, _ = cli("doctor", "--dir", "file/runs")
    assert code == 1
    assert "fail  run folder" in out
    assert "Next: use run.dir=FOLDER; then rlframe doctor" in out


def test_doctor_as_json(cli):
    code, out, _ = cli("doctor", "--json", "--only", "threads,ports")
    told = json.loads(out)
    assert (code, told["ok"], told["next"]) == (0, True, "rlframe doctor")
    assert [row["subject"] for row in told["findings"]] == ["threads", "loopback"]
    assert set(told["findings"][0]) == {"state", "subject", "found", "remedy"}
    code, out, _ = cli("doctor", "--json", "--only", "disk", "--dir", "/dev/null/runs")
    assert (code, json.loads(out)["ok"]) == (1, False)
    for words in (("--only", "disc"), ("--port", "0"), ("--port", "x")):
        code, out, err = cli("doctor", *words)
        assert (code, out) == (2, "")
        assert err.startswith("rlframe: error: ")


def test_interrupts_and_closed_pipes_end_quietly(cli, monkeypatch):
    monkeypatch.setattr("rlframe.cli.plugins.plugins", lambda _: (_ for _ in ()).throw(
        KeyboardInterrupt))  # fmt: skip
    code, _, err = cli("plugins")
    assert (code, err) == (130, "rlframe: interrupted\n")
