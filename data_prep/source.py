"""What a source of raw logs tells the common code about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.download import RemoteFile
from data_prep.event_log import EventLog
from data_prep.published import Published
from data_prep.requests import RequestRule


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """One data set that can be prepared. Nothing is downloaded or read until `read` is about to be called."""

    name: str
    """The data set's name and its folder's."""
    description: str
    """Where the log comes from, one line."""
    licence: str
    """Terms of use, shown and recorded."""
    code: Path
    """The source's module; an edit of it makes prepared data stale."""
    inputs: tuple[Path, ...]
    """Files read that are on this machine already."""
    parameters: dict[str, Any]
    """What else decides the log; plain JSON values."""
    rule: RequestRule
    read: Callable[[], Iterable[EventLog]]
    """The log's parts in source order, of any size (a million events is a good one); one is in memory at a time."""
    ordered_items: int | None = None
    """Not None: the parts are whole users in the order of their first event, each user's events are in the order of
    time, and item ids are 0 .. this - 1. Then nothing has to be sorted but requests."""
    remote: tuple[RemoteFile, ...] = ()
    """Files fetched before `read` is called."""
    published: Published | None = None
    """What is known of the whole log, to be compared with what was read."""
