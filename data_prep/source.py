"""What a source of raw logs tells the common code about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.event_log import EventLog
from data_prep.requests import RequestRule


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """One data set that can be prepared. Nothing is read until `read` is called."""

    name: str
    """The data set's name and its folder's."""
    description: str
    """Where the log comes from, one line."""
    licence: str
    """Terms of use, shown and recorded."""
    code: Path
    """The source's module; an edit of it makes prepared data stale."""
    inputs: tuple[Path, ...]
    """Files read."""
    parameters: dict[str, Any]
    """What else decides the log; plain JSON values."""
    rule: RequestRule
    read: Callable[[], EventLog]
