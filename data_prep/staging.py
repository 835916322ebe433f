"""First pass over a log: raw ids become codes, events go to a file in source order, users are counted.

What stays in memory grows with the number of users and of items, never of events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.event_log import ITEM, EventLog
from data_prep.row_file import RowFile
from data_prep.vocabulary import Vocabulary
from repro.data.schema import Feature
from repro.errors import InputError

# N events of a part, U users

PROGRESS_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Staged:
    """A log whose events wait on disk. Users and items go by code, in the order in which they were first seen."""

    rows: RowFile
    """user int32, time int64, label uint8, then int32 a feature; row i is the log's i-th event."""
    users: Vocabulary
    items: Vocabulary
    events_U: np.ndarray
    """Events of each user, int64."""
    first_time_U: np.ndarray
    """Earliest time of each user, int64 ms."""
    first_row_U: np.ndarray
    """Row of the first event at that time, int64."""
    features: tuple[Feature, ...]
    left_out: dict[str, int]
    """Reason -> events that the source left out."""


def stage(parts: Iterable[EventLog], folder: Path, log: Callable[[str], None]) -> Staged:
    """Read all of `parts` into files in `folder`.

    Raises:
        InputError: no events, or ids that differ in kind between parts.
    """
    users, items = Vocabulary("user"), Vocabulary(ITEM)
    first = _FirstEvents()
    rows: RowFile | None = None
    features: tuple[Feature, ...] = ()
    left_out: dict[str, int] = {}
    said = time.monotonic()
    for part in parts:
        for reason, count in part.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
        if not len(part):
            continue
        rows = rows or RowFile(folder, event_columns(part.features(0)))
        user_N = users.encode(part.user)
        item_N = items.encode(part.item)
        features = part.features(len(items))
        first.add(user_N, part.time, rows.rows, len(users))
        rows.append(
            {"user": user_N, ITEM: item_N, "time": part.time, "label": part.label, **part.attributes, **part.actions}
        )
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            log(f"  read {rows.rows:,} events of {len(users):,} users")
    if rows is None:
        raise InputError("the log has no events; give one with at least two events of one user")
    return Staged(
        rows=rows,
        users=users,
        items=items,
        events_U=first.events_U[: len(users)],
        first_time_U=first.time_U[: len(users)],
        first_row_U=first.row_U[: len(users)],
        features=features,
        left_out=left_out,
    )


def event_columns(features: tuple[Feature, ...]) -> dict[str, np.dtype]:
    """Columns of events on disk."""
    int32, int64, uint8 = (np.dtype(kind) for kind in (np.int32, np.int64, np.uint8))
    return {"user": int32, "time": int64, "label": uint8, **{feature.name: int32 for feature in features}}


class _FirstEvents:
    """Count and first event of each user; arrays are longer than there are users, so that they seldom grow."""

    def __init__(self) -> None:
        self.events_U = np.zeros(0, dtype=np.int64)
        self.time_U = np.zeros(0, dtype=np.int64)
        self.row_U = np.zeros(0, dtype=np.int64)

    def add(self, user_N: np.ndarray, time_N: np.ndarray, row: int, users: int) -> None:
        """Rows from `row` on; `users` users are known by now."""
        if users > self.events_U.size:
            more = max(users, 2 * self.events_U.size) - self.events_U.size
            self.events_U = np.concatenate([self.events_U, np.zeros(more, dtype=np.int64)])
            self.time_U = np.concatenate([self.time_U, np.full(more, np.iinfo(np.int64).max)])
            self.row_U = np.concatenate([self.row_U, np.zeros(more, dtype=np.int64)])
        self.events_U += np.bincount(user_N, minlength=self.events_U.size)
        before_N = self.time_U[user_N]
        np.minimum.at(self.time_U, user_N, time_N)
        found = np.flatnonzero((time_N < before_N) & (time_N == self.time_U[user_N]))[::-1]
        self.row_U[user_N[found]] = row + found  # of equal places NumPy keeps the last, here the earliest row
