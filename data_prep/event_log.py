"""A raw log in columns, as every source hands it to the writer, and its order in the prepared data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.data.schema import Feature
from repro.errors import InputError

# N events, U users

ITEM = "item"


@dataclass(frozen=True, kw_only=True, eq=False)
class EventLog:
    """Events in source order. Built once by a source; checked when built.

    Raises:
        InputError: no events, columns of unequal length, a label that is neither 0 nor 1, an id outside its vocabulary.
    """

    user: np.ndarray
    """(N,) raw user ids, integers or text. They never leave `data_prep`."""
    item: np.ndarray
    """(N,) raw item ids, integers or text."""
    time: np.ndarray
    """(N,) int64, milliseconds since the epoch or since the log's own zero."""
    label: np.ndarray
    """(N,) 0 or 1: what a ranking model is to predict of the event."""
    actions: dict[str, np.ndarray]
    """Feature -> (N,) ids 0..vocabulary-1: what the user did, known only after the event."""
    action_vocabulary: dict[str, int]
    """Feature -> number of ids."""

    def __post_init__(self) -> None:
        if not self.user.size:
            raise InputError("the log has no events; give one with at least two events of one user")
        columns = {"item": self.item, "time": self.time, "label": self.label, **self.actions}
        for name, column in columns.items():
            if column.shape != self.user.shape:
                raise InputError(f"{name}: {column.size} values for {self.user.size} events; give one an event")
        _check(np.isin(self.label, (0, 1)), "label", self.label, "must be 0 or 1")
        for name, column in self.actions.items():
            vocabulary = self.action_vocabulary[name]
            _check((column >= 0) & (column < vocabulary), name, column, f"must be an id in 0..{vocabulary - 1}")

    def features(self, items: int) -> tuple[Feature, ...]:
        """The item (of `items` distinct ones), which candidates carry, then the actions, which they do not."""
        return (
            Feature(name=ITEM, vocabulary=items, of_candidate=True),
            *(Feature(name=name, vocabulary=self.action_vocabulary[name], of_candidate=False) for name in self.actions),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """Where each event goes in the prepared data set."""

    source_row: np.ndarray
    """(N,) int64: source row of each prepared row."""
    user_begin: np.ndarray
    """(U + 1,) int64: prepared rows `user_begin[u] .. user_begin[u + 1]` are user u's."""


def sort_events(log: EventLog) -> Order:
    """Sort by (user, time, source row), users by (time, source row) of their first event.

    Ordering users by their first event, not by id, keeps the raw id out of a row's position.
    """
    _, code_N = np.unique(log.user, return_inverse=True)
    by_code_N = np.lexsort((log.time, code_N))  # stable: equal times keep their source order
    begin_U = np.flatnonzero(np.diff(code_N[by_code_N], prepend=-1))
    size_U = np.diff(begin_U, append=by_code_N.size)
    first_U = by_code_N[begin_U]
    order_U = np.lexsort((first_U, log.time[first_U]))
    user_begin = np.concatenate([[0], np.cumsum(size_U[order_U])]).astype(np.int64)
    source_row = by_code_N[ranges(begin_U[order_U], size_U[order_U])]
    return Order(source_row=source_row, user_begin=user_begin)


def ranges(begin_K: np.ndarray, size_K: np.ndarray) -> np.ndarray:
    """`begin[0], begin[0]+1, ... (size[0] of them), begin[1], ...` as int64; example: ([5, 0], [2, 1]) -> [5, 6, 0]."""
    before_K = np.cumsum(size_K) - size_K
    result: np.ndarray = np.repeat(begin_K - before_K, size_K) + np.arange(int(size_K.sum()))
    return result


def _check(good_N: np.ndarray, name: str, column_N: np.ndarray, message: str) -> None:
    if not good_N.all():
        row = int(np.argmin(good_N))
        raise InputError(f"event {row}: {name} {message}, got {column_N[row]}")
