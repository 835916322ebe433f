"""What one check found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `repro doctor`."""

    name: str
    state: State
    """fail: runs will not work; warn: some will not, or not well."""
    detail: str
    """What was found, one line."""
    fix: str = ""
    """What to do, one line; empty when the state is ok."""

    def __post_init__(self) -> None:
        assert (self.state == "ok") == (not self.fix), f"{self.name}: a fix belongs to what is not ok"
