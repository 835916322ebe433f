"""Raw events in columns, as every source hands them to the common code, one part of the log after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from repro.data.schema import Feature
from repro.errors import InputError

# N events

ITEM = "item"

Ids: TypeAlias = np.ndarray | pa.Array
"""Integers or text."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EventLog:
    """Some events in source order: a part of a log, or all of a small one. Checked when built.

    Raises:
        InputError: columns of unequal length, a label that is neither 0 nor 1, an id outside its vocabulary.
    """

    user: Ids
    """(N,) raw user ids. They never leave `data_prep`."""
    item: Ids
    """(N,) raw item ids."""
    time: np.ndarray
    """(N,) int64, milliseconds since the epoch or since the log's own zero."""
    label: np.ndarray
    """(N,) 0 or 1: what a ranking model is to predict of the event."""
    actions: dict[str, np.ndarray]
    """Feature -> (N,) ids 0..vocabulary-1: what the user did, known only after the event."""
    action_vocabulary: dict[str, int]
    """Feature -> number of ids. May grow from part to part of a log: that of the last part counts."""
    attributes: dict[str, np.ndarray] = field(default_factory=dict)
    """Feature -> (N,) ids 0..vocabulary-1 of the item (category, author): known before, so candidates carry it."""
    attribute_vocabulary: dict[str, int] = field(default_factory=dict)
    """Feature -> number of ids. May grow from part to part of a log: that of the last part counts."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Reason -> number of the source's events that are not in this part, by the source's documented rule."""

    def __post_init__(self) -> None:
        columns = {"item": self.item, "time": self.time, "label": self.label, **self.attributes, **self.actions}
        for name, column in columns.items():
            if len(column) != len(self.user):
                raise InputError(f"{name}: {len(column)} values for {len(self.user)} events; give one an event")
        _check((self.label == 0) | (self.label == 1), "label", self.label, "must be 0 or 1")
        for name, column in {**self.attributes, **self.actions}.items():
            vocabulary = {**self.attribute_vocabulary, **self.action_vocabulary}[name]
            _check((column >= 0) & (column < vocabulary), name, column, f"must be an id in 0..{vocabulary - 1}")

    def __len__(self) -> int:
        """Number of events."""
        return len(self.user)

    def features(self, items: int) -> tuple[Feature, ...]:
        """The item (of `items` distinct ones) and its attributes, which candidates carry, then the actions, which they
        do not."""
        return (
            Feature(name=ITEM, vocabulary=items, of_candidate=True),
            *(
                Feature(name=name, vocabulary=size, of_candidate=True)
                for name, size in self.attribute_vocabulary.items()
            ),
            *(Feature(name=name, vocabulary=self.action_vocabulary[name], of_candidate=False) for name in self.actions),
        )


def ranges(begin_K: np.ndarray, size_K: np.ndarray) -> np.ndarray:
    """`begin[0], begin[0]+1, ... (size[0] of them), begin[1], ...` as int64; example: ([5, 0], [2, 1]) -> [5, 6, 0]."""
    before_K = np.cumsum(size_K) - size_K
    result: np.ndarray = np.repeat(begin_K - before_K, size_K) + np.arange(int(size_K.sum()))
    return result


def _check(good_N: np.ndarray, name: str, column_N: np.ndarray, message: str) -> None:
    if not good_N.all():
        row = int(np.argmin(good_N))
        raise InputError(f"event {row}: {name} {message}, got {column_N[row]}")
