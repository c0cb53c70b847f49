"""What a snapshot keeps of a run beside its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlframe.asking import ask, ask_mapping
from rlframe.roles import roles_of

if TYPE_CHECKING:
    from rlframe.orchestrator import Orchestrator

__all__ = ["Learned", "load_run_state", "run_state"]


@dataclass(frozen=True)
class Learned:
    """What an update gave, and the version that its weights will be."""

    metrics: dict[str, float]
    version: int


def run_state(run: Orchestrator) -> dict[str, Any]:
    """JSON values and tensors."""
    second, specs = run.parts.second, roles_of(run.config, run.algorithm)
    return {
        "step": run.step,
        "version": run.version,
        "stream": run.stream.state_dict(),
        "intake": run.intake.state_dict(),
        "buffer": run.buffer.state_dict(),
        "second": second.stream.state_dict() if second else None,
        "kinds": {role.name: role.model for role in specs if role.trained},
        "algorithm": ask_mapping(run.algorithm, "state_dict"),
        "callbacks": run.parts.callbacks.state_dict(),
    }


def load_run_state(run: Orchestrator, state: Mapping[str, Any]) -> None:
    """The reverse of :func:`run_state`."""
    parts = run.parts
    run.step, run.version = int(state["step"]), int(state["version"])
    run.stream.load_state_dict(state["stream"])
    run.intake.load_state_dict(state["intake"])
    run.buffer.load_state_dict(state["buffer"], schema=parts.schema, transfer=parts.transfer)
    if parts.second is not None:
        parts.second.stream.load_state_dict(state["second"])
    ask(run.algorithm, "load_state_dict", state["algorithm"])
    parts.callbacks.load_state_dict(state["callbacks"])
