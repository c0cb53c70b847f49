"""Exit codes of the command line are those that docs/install.md and ``rlframe --help`` tell."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from rlframe import errors
from rlframe.cli.main import main
from rlframe.recovery.lives import _SIGNALS

PAGE = (Path(__file__).parents[3] / "docs/install.md").read_text(encoding="utf-8")
CODES = dict(re.findall(r"^\| ([\d +N]+) \| (.+) \|$", PAGE.partition("## Exit codes")[2], re.M))


def test_every_error_of_ours_has_a_documented_code():
    assert set(CODES) == {"0", "1", "2", "128 + N"}
    kinds = [getattr(errors, name) for name in errors.__all__ if name.endswith(("Error", "Fault"))]
    assert {kind.exit_code for kind in kinds} == {1, 2}
    assert {kind for kind in kinds if kind.exit_code == 2} == {
        errors.ConfigError,
        errors.PluginError,
    }


def test_every_signal_that_ends_a_run_is_documented():
    for name, number in _SIGNALS.items():
        assert f"{128 + int(number)} {name}" in CODES["128 + N"]
    assert signal.SIGINT in _SIGNALS.values()


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["plugins"], 0),
        (["doctor", "--only", "threads"], 0),
        (["doctor", "--only", "disk", "--dir", f"{__file__}/runs"], 1),
        ([], 2),
        (["fitt"], 2),
        (["fit", "optim.lrr=1"], 2),
        (["doctor", "--only", "nothing"], 2),
        (["map", "--algo", "ppo", "--model", "llama-2-70b", "--hardware", "1x1:a10"], 2),
    ],
)
def test_codes_of_commands(argv, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == code
    error = capsys.readouterr().err
    assert error.startswith("rlframe: error: ") or not error


def test_the_help_names_them(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done, 1 failed, 2 wrong command or config" in text
