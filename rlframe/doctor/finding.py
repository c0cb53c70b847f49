"""One line of what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """How it is, what was looked at, what was found, and what to do about it."""

    state: Literal["ok", "warn", "fail"]
    subject: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<5} {self.subject:<14} {self.found}"
        return f"{line}: {self.remedy}" if self.remedy else line
