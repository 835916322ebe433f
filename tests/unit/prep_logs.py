"""Small logs and a source around them, for the tests of `data_prep` and of the reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.event_log import EventLog
from data_prep.prepare import prepare_source
from data_prep.requests import RequestRule
from data_prep.source import Source

ITEM_STEP, ITEM_BASE = 7, 9_000_000_000
"""Raw items are ITEM_BASE + ITEM_STEP * source row: distinct, so that an item names its event."""


def small_log(user: list[int], time: list[int], label: list[int] | None = None) -> EventLog:
    """Events in source order; actions 0..2 in turn."""
    rows = np.arange(len(user))
    return EventLog(
        user=np.array(user),
        item=ITEM_BASE + ITEM_STEP * rows,
        time=np.array(time, dtype=np.int64),
        label=np.array(rows % 2 if label is None else label, dtype=np.float32),
        actions={"action": (rows % 3).astype(np.int32)},
        action_vocabulary={"action": 3},
    )


def some_log(events: int = 400, users: int = 12, seed: int = 0) -> EventLog:
    """Unsorted events with many equal times."""
    rng = np.random.default_rng(seed)
    user = 123_456_789_000 + rng.integers(users, size=events)
    return small_log(user.tolist(), rng.integers(events // 4, size=events).tolist())


def source_of(log: EventLog, *, name: str = "small", rule: RequestRule | None = None, seed: int = 0) -> Source:
    """A source whose log is `log`."""
    return Source(
        name=name,
        description="made by a test",
        licence="none",
        code=Path(__file__),
        inputs=(),
        parameters={"seed": seed},
        rule=rule or RequestRule(seed=seed),
        read=lambda: [log],
    )


def prepare_log(log: EventLog, data_root: Path, *, rule: RequestRule | None = None, key: str = "key") -> Path:
    """Prepare `log` quietly as data set `small`; the key file lies beside `data_root`."""
    key_path = data_root.with_name(key)
    return prepare_source(source_of(log, rule=rule), data_root, key_path=key_path, log=lambda _: None)
