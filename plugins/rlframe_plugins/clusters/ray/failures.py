"""From Ray's exceptions to rlframe's: who failed, where, and why."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlframe.errors import RlframeError, WorkerError

if TYPE_CHECKING:
    from rlframe_plugins.clusters.ray.crew import Member

__all__ = ["Death", "died_of", "reason_of", "translate"]

_LOOK_S = 5.0
"""How long a worker may take to show that it lives."""


class Death(WorkerError):
    """A worker's process ended."""


class _Remote(Exception):  # noqa: N818 - shown by a traceback, never raised
    """A worker's traceback, as the cause of its error here."""


def translate(error: BaseException, role: str, member: Member) -> Exception:
    """What a user is told of an answer that did not come.

    An rlframe error of the worker itself stays what it is, with a note of where it was and the
    worker's traceback as its cause; everything else is a ``WorkerError``.
    """
    from ray import exceptions as rx

    rank, host = member.rank, member.host
    if isinstance(error, rx.RayTaskError):
        cause = error.cause
        if isinstance(cause, RlframeError):
            return cause if isinstance(cause, WorkerError) else _located(cause, error, role, member)
        what = f"{type(cause).__name__}: {cause}"
        return WorkerError(role, rank, host, what, str(error))
    if isinstance(error, rx.ActorDiedError | rx.ActorUnavailableError | rx.WorkerCrashedError):
        what = f"the worker (process {member.where.pid}) died: {_exit_reason(str(error))}"
        return Death(role, rank, host, what)
    if isinstance(error, RlframeError):
        return error
    return WorkerError(role, rank, host, f"{type(error).__name__}: {error}")


def _located(found: RlframeError, error: Exception, role: str, member: Member) -> RlframeError:
    """The same error with role, rank and host; once, also where it is looked at again."""
    note = f"in role '{role}', rank {member.rank} on {member.host}"
    if note not in getattr(found, "__notes__", ()):
        found.add_note(note)
        found.__cause__ = _Remote(str(error))
    return found


def reason_of(error: Exception) -> bool:
    """Whether an error may be what the peer of a dead rank sees: a closed connection."""
    text = str(error).lower()
    return any(word in text for word in ("connection", "peer", "gloo", "nccl", "socket"))


async def died_of(error: Exception, role: str, members: Sequence[Member]) -> Death | None:
    """The death of a member that explains an error; None where all live, or none would."""
    from ray import exceptions as rx

    if not reason_of(error):
        return None
    for member in members:
        try:
            await asyncio.wait_for(_awaited(member.actor.stacks.remote()), _LOOK_S)
        except TimeoutError:
            continue
        except rx.RayError as dead:
            found = translate(dead, role, member)
            if isinstance(found, Death):
                return found
    return None


async def _awaited(ref: Any) -> Any:
    return await ref


def _exit_reason(text: str) -> str:
    """The part of Ray's message that says why; one line."""
    for pattern in (r"[Ee]xit detail: (.+)", r"[Ww]orker exit.*?: (.+)", r"reason: (.+)"):
        found = re.search(pattern, text)
        if found:
            return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
