"""What would make DeepSpeed fail or hang when it starts is named before; needs no DeepSpeed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlframe.errors import PluginError
from rlframe_strategies import deepspeed_setup
from rlframe_strategies.deepspeed_setup import check_op, import_deepspeed

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of extensions and a machine with all tools."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ninja", "c++"):
        (tools / name).write_text("#!/bin/sh\necho 1.11\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    return tmp_path / "extensions"


def planted(cache: Path, name: str = "cpu_adam") -> Path:
    lock = cache / name / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def test_a_clean_cache_passes(cache: Path) -> None:
    check_op("cpu_adam")


def test_a_stale_lock_is_named_with_what_to_do(cache: Path) -> None:
    lock = planted(cache)
    with pytest.raises(PluginError, match=f"(?s)'cpu_adam' that was killed.*rm '{lock}'"):
        check_op("cpu_adam")
    lock.unlink()
    check_op("cpu_adam")


def test_a_lock_that_a_builder_holds_is_waited_for(cache: Path) -> None:
    """The builder has it open until it is done; when it is killed, the lock turns stale."""
    lock = planted(cache)
    code = (
        "import os, sys\n"
        f"held = os.open({str(lock)!r}, os.O_RDONLY)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"os.remove({str(lock)!r})\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as builder:
        assert builder.stdout is not None
        assert builder.stdin is not None
        assert builder.stdout.readline() == b"ready\n"
        assert deepspeed_setup._is_held(lock)
        builder.stdin.write(b"done\n")
        builder.stdin.flush()
        check_op("cpu_adam")
        assert not lock.exists()


def test_a_missing_compiler_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PluginError, match=r"C\+\+ compiler 'no-such-compiler' is missing"):
        check_op("cpu_adam")


def test_a_missing_ninja_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setattr(sys, "executable", str(cache / "python"))
    with pytest.raises(PluginError, match="ninja is missing: pip install ninja"):
        check_op("cpu_adam")


def test_ninja_beside_python_is_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that is not activated has its tools there."""
    tools, other = cache.parent / "bin", cache.parent / "other"
    other.mkdir()
    (tools / "c++").rename(other / "c++")
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setattr(sys, "executable", str(tools / "python"))
    check_op("cpu_adam")
    assert os.environ["PATH"] == f"{tools}{os.pathsep}{other}"


def test_without_deepspeed_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(PluginError, match=r"pip install 'rlframe\[deepspeed\]'"):
        import_deepspeed(torch.device("cpu"))
