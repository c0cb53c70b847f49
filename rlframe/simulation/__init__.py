"""Schedulers on simulated engines in virtual time: real Buffer, Intake and Scheduler code."""

from rlframe.simulation.engine import SimEngine
from rlframe.simulation.player import SimPlayer, SimSpec
from rlframe.simulation.run import SimReport, SimRun

__all__ = ["SimEngine", "SimPlayer", "SimReport", "SimRun", "SimSpec"]
