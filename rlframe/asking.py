"""Asking a method's own code: what it raises is named, what it gives is checked."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlframe.errors import RlframeError, TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rlframe.algorithm import Algorithm
    from rlframe.batching.batch import Batch

__all__ = ["MethodError", "ask", "ask_atoms", "ask_mapping", "raised_in"]

_HINT = ". --debug shows the traceback"


class MethodError(TrainingError):
    """A method's own code raised; ``said`` names class, method, file and line.

    In a worker it becomes a ``WorkerError`` with role, rank, host and traceback.
    """

    @property
    def said(self) -> str:
        """The message without the hint at a traceback that is elsewhere."""
        return str(self).removesuffix(_HINT)


def ask(algorithm: Algorithm, method: str, *arguments: Any) -> Any:
    """What a method returns. Raises MethodError naming the method, the file and the line."""
    try:
        return getattr(algorithm, method)(*arguments)
    except RlframeError:
        raise
    except Exception as error:
        inner = list(_methods_in(error, algorithm))
        what = f"{type(algorithm).__name__}.{inner[-1] if inner else method}"
        raise MethodError(raised_in(what, error)) from error


def raised_in(what: str, error: Exception) -> str:
    """``MyMethod.accept raised ValueError: ... (my.py:7)``: one line for a user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{what} raised {type(error).__name__}: {error}{where}{_HINT}"


def _methods_in(error: Exception, algorithm: Algorithm) -> Iterator[str]:
    """The public methods of this object that an exception came through, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_name
        mine = frame.f_locals.get("self") is algorithm
        if mine and not name.startswith("_") and hasattr(type(algorithm), name):
            yield name


def ask_mapping(algorithm: Algorithm, method: str, *arguments: Any) -> dict[Any, Any]:
    """What a method returns by name. Raises MethodError, and TrainingError for no mapping."""
    made = ask(algorithm, method, *arguments)
    if not isinstance(made, Mapping):
        raise TrainingError(
            f"{type(algorithm).__name__}.{method} returned {type(made).__name__}: return a dict"
        )
    return dict(made)


def ask_atoms(algorithm: Algorithm, batch: Batch) -> NDArray[np.int64] | None:
    """``Algorithm.atoms``, (B,). Raises TrainingError where it is of another shape or dtype."""
    made = ask(algorithm, "atoms", batch)
    if made is None:
        return None
    ids = np.asarray(made)
    if ids.shape != (len(batch),) or ids.dtype.kind not in "iu":
        raise TrainingError(
            f"{type(algorithm).__name__}.atoms returned {ids.dtype} {ids.shape}: return one whole "
            f"number a row, ({len(batch)},)"
        )
    return ids.astype(np.int64)
