"""The sort by (user, time, source row) that needs no more memory for a longer log.

Two passes over the disk after `staging`: events go to groups of consecutive users, then each group is sorted in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.event_log import ITEM, EventLog
from data_prep.row_file import Columns, GroupedRowFile
from data_prep.staging import Staged, event_columns
from data_prep.user_hash import hash_users

# N events, U users

MAX_GROUPS = 512
TIME_SAMPLES = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class SortedUsers:
    """All events of some users, in prepared order."""

    hash_U: np.ndarray
    """Keyed hash, int64 (U,)."""
    begin_U: np.ndarray
    """(U + 1,) int64: events `begin[u] .. begin[u + 1]` are user u's."""
    events: Columns
    """time int64, row int64 (in the source), label, and the features; (N,) each."""


class UserSort:
    """Puts users in the order of (time, source row) of their first event, which keeps raw ids out of positions."""

    def __init__(self, staged: Staged, key: bytes, folder: Path, *, group_events: int, window_events: int) -> None:
        """Moves the staged events into groups; `staged` is used up.

        Args:
            staged: the log.
            key: of the user hash.
            folder: for temporary files.
            group_events: events sorted at once (and those of one more user).
            window_events: events moved at once.
        """
        code_U = np.lexsort((staged.first_row_U, staged.first_time_U))
        self._begin_U = np.concatenate([[0], np.cumsum(staged.events_U[code_U])])
        self._hash_U = hash_users(staged.users.raw(), key)[code_U]
        group_events = max(group_events, -(-int(self._begin_U[-1]) // MAX_GROUPS))
        self._group_U = self._begin_U[:-1] // group_events
        place_U = np.empty(code_U.size, dtype=np.int32)
        place_U[code_U] = np.arange(code_U.size, dtype=np.int32)
        columns = {"row": np.dtype(np.int64), **event_columns(staged.features)}
        self._events = GroupedRowFile(folder, columns, int(self._group_U[-1]) + 1)
        self.times = self._move(staged, place_U, window_events)
        """Times of some events, int64."""
        self.duplicates = 0
        """Events with the user, time and item of an earlier one, of those given out so far."""
        self.out_of_order = 0
        """Events that come in the source before one of their user's that is earlier, likewise."""

    @property
    def groups(self) -> int:
        """Number of parts that it gives."""
        return self._events.groups

    def _move(self, staged: Staged, place_U: np.ndarray, window_events: int) -> np.ndarray:
        item_rank = staged.items.ranks()
        rows = staged.rows.rows
        times = []
        for begin in range(0, rows, window_events):
            window = staged.rows.read(begin, min(window_events, rows - begin))
            place_N = place_U[window["user"]]
            window |= {"user": place_N, ITEM: item_rank[window[ITEM]], "row": np.arange(begin, begin + place_N.size)}
            self._events.append_grouped(self._group_U[place_N], window)
            times.append(window["time"][:: max(1, rows // TIME_SAMPLES)])
        staged.rows.close()
        return np.concatenate(times)

    def __iter__(self) -> Iterator[SortedUsers]:
        """All users in order; once."""
        for group in range(self.groups):
            first, last = np.searchsorted(self._group_U, (group, group + 1))
            if first == last:
                continue
            events = _sorted(self._events.read_group(group))
            self.duplicates += _duplicates(events)
            same_user_N = np.diff(events["user"]) == 0
            self.out_of_order += int(np.count_nonzero(same_user_N & (np.diff(events["row"]) < 0)))
            yield SortedUsers(
                hash_U=self._hash_U[first:last],
                begin_U=self._begin_U[first : last + 1] - self._begin_U[first],
                events=events,
            )
        self._events.close()


def already_sorted(parts: Iterable[EventLog], key: bytes) -> Iterator[SortedUsers]:
    """Parts that need no sort, as `Source.ordered_items` says: nothing is staged, and no code given out."""
    row = 0
    for part in parts:
        if len(part):
            begin_U = np.flatnonzero(np.diff(part.user, prepend=part.user[0] - 1))
            yield SortedUsers(
                hash_U=hash_users(part.user[begin_U].tolist(), key),
                begin_U=np.append(begin_U, len(part)),
                events={
                    "time": part.time,
                    "row": np.arange(row, row + len(part)),
                    "label": part.label,
                    ITEM: part.item,
                    **part.attributes,
                    **part.actions,
                },
            )
            row += len(part)


def _sorted(events: Columns) -> Columns:
    """By (user, time), equal ones in the order in which they came, which is that of the source."""
    user_N, time_N = events["user"].astype(np.int64), events["time"]
    user_N -= user_N.min()
    first, last = int(time_N.min()), int(time_N.max())
    bits = (last - first).bit_length()
    if int(user_N.max()).bit_length() + bits <= 63:
        key_N = (user_N << bits) + (time_N - first)
        if (key_N[1:] >= key_N[:-1]).all():
            return events
        order_N = np.argsort(key_N, kind="stable")
    else:
        order_N = np.lexsort((time_N, user_N))
    return {name: column[order_N] for name, column in events.items()}


def _duplicates(events: Columns) -> int:
    tie_N = (np.diff(events["user"]) == 0) & (np.diff(events["time"]) == 0)
    in_tie_N = np.concatenate([[False], tie_N]) | np.concatenate([tie_N, [False]])
    user, time, item = (events[name][in_tie_N] for name in ("user", "time", ITEM))
    order = np.lexsort((item, time, user))
    return int(np.count_nonzero(np.logical_and.reduce([np.diff(values[order]) == 0 for values in (user, time, item)])))
