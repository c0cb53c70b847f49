from __future__ import annotations

import pytest

from rlframe.interfaces.loop import Logger
from rlframe.recording.loggers import LoggerError, LoggerList


class Kept(Logger):
    """Keeps what it is told; raises where asked."""

    def __init__(self, raises=()):
        super().__init__()
        self.told, self.raises = [], raises

    def start(self, run_dir, config, total_steps, first_step):
        self._tell("start")

    def log(self, step, metrics):
        self._tell("log")

    def close(self):
        self._tell("close")

    def _tell(self, verb):
        self.told.append(verb)
        if verb in self.raises:
            raise OSError("disk gone")


def test_a_fault_names_logger_and_verb():
    with pytest.raises(LoggerError, match=r"logger 'Kept' raised in log: OSError: disk gone"):
        LoggerList([Kept(["log"])]).log(1, {})


def test_every_logger_is_closed():
    first, second = Kept(["close"]), Kept()
    with pytest.raises(LoggerError, match="close"):
        LoggerList([first, second]).close()
    assert second.told == ["close"]
