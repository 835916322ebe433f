"""Columns of raw files: what a source needs of each, checked for all rows at once, and a bad row put in words."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from repro.errors import InputError

# N rows

DAY_SECONDS = 86_400

Values = dict[str, Any]
"""Column name -> (N,) NumPy array of numbers, or Arrow array of text."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """A column that a source reads."""

    name: str
    """As in the file's header."""
    type: pa.DataType
    """int64, float64 or string."""
    is_good: Callable[[Any], np.ndarray]
    """Values of the type (N,) -> bool (N,)."""
    wanted: str
    """What a good value is, in words."""
    is_private: bool = False
    """A user id: messages never repeat it."""

    def of(self, column: pa.Array) -> Any:
        """The values of a column that was read with `type`, as in `Values`."""
        return column if pa.types.is_string(self.type) else column.to_numpy(zero_copy_only=False)

    def complaint(self, text: str | None) -> str | None:
        """What is wrong with one value as it stands in the file; None: nothing."""
        if text is not None and "\ufffd" in text:
            return f"{self.name} is not UTF-8 text; convert the file to UTF-8"
        try:
            value = pa.array([text], pa.string()).cast(self.type)
            good = text is not None and bool(self.is_good(self.of(value))[0])
        except pa.ArrowInvalid:
            good = False
        if good:
            return None
        shown = "something else" if self.is_private and text else "nothing" if not text else repr(text[:80])
        return f"{self.name} must be {self.wanted}, got {shown}"


def check(fields: tuple[Field, ...], values: Values) -> tuple[int, Field] | None:
    """First bad row of some rows, and the field that is bad; None: all are good."""
    found = [
        (int(np.argmin(good_N)), field) for field in fields if not (good_N := field.is_good(values[field.name])).all()
    ]
    return min(found, key=lambda place: place[0]) if found else None


def identifier(name: str, *, is_private: bool = False, least: int | None = 0) -> Field:
    """Any integer id from `least` on; None: any at all."""
    return Field(
        name=name,
        type=pa.int64(),
        is_good=lambda values: np.ones(values.size, dtype=bool) if least is None else values >= least,
        wanted="an integer" if least is None else f"an integer >= {least}",
        is_private=is_private,
    )


def text_identifier(name: str, *, is_private: bool = False) -> Field:
    """Any text but an empty one."""
    return Field(
        name=name,
        type=pa.string(),
        is_good=lambda values: pc.greater(pc.binary_length(values), 0).to_numpy(zero_copy_only=False),
        wanted="an id",
        is_private=is_private,
    )


def integer(name: str, least: int, most: int, *, is_private: bool = False) -> Field:
    """An integer in `least..most`."""
    return Field(
        name=name,
        type=pa.int64(),
        is_good=lambda values: (values >= least) & (values <= most),
        wanted=f"an integer in {least}..{most}",
        is_private=is_private,
    )


def any_number(name: str) -> Field:
    """Any number that is one."""
    return Field(name=name, type=pa.float64(), is_good=np.isfinite, wanted="a number")


def one_of(name: str, allowed: tuple[str, ...]) -> Field:
    """One of some words."""
    return Field(
        name=name,
        type=pa.string(),
        is_good=lambda values: pc.is_in(values, pa.array(allowed)).to_numpy(zero_copy_only=False),
        wanted=f"one of {', '.join(allowed)}",
    )


def epoch(name: str, units_a_second: int = 1, *, kind: pa.DataType | None = None) -> Field:
    """Time since 1970 in units of 1 / `units_a_second` s, not later than a day from now.

    A later time is an error, not an event to drop: it means that the unit is another, or that the clock that wrote the
    log was wrong, and a model would be asked to predict what it has already seen.
    """
    latest = (int(time.time()) + DAY_SECONDS) * units_a_second
    unit = {1: "seconds", 1_000: "milliseconds", 1_000_000: "microseconds", 1_000_000_000: "nanoseconds"}
    return Field(
        name=name,
        type=kind or pa.int64(),
        is_good=lambda values: (values >= 0) & (values <= latest),
        wanted=f"{unit[units_a_second]} since 1970, none of them in the future",
    )


def calendar(name: str) -> Field:
    """A date or time in text, as `milliseconds` reads it, from 1970 on and not later than a day from now."""
    latest = (int(time.time()) + DAY_SECONDS) * 1_000

    def is_good(texts: pa.Array) -> np.ndarray:
        try:
            ms_N = milliseconds(texts)
        except ValueError:
            ms_N = np.array([_milliseconds(text) for text in texts.to_pylist()])
        good_N: np.ndarray = (ms_N >= 0) & (ms_N <= latest)
        return good_N

    return Field(
        name=name,
        type=pa.string(),
        is_good=is_good,
        wanted="a time such as 2024-05-01T12:00:00Z, from 1970 on and not in the future",
    )


def milliseconds(texts_N: pa.Array) -> np.ndarray:
    """ISO 8601 dates and times since 1970, int64 ms (N,); without a zone they are UTC.

    Raises:
        ValueError: one is not such a text.
    """
    has_zone_N = pc.match_substring_regex(texts_N, r"[0-9][T ][0-9:.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$")
    with_zone = texts_N.filter(has_zone_N).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy()
    without = texts_N.filter(pc.invert(has_zone_N)).cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    ms_N = np.empty(len(texts_N), dtype=np.int64)
    at_N = has_zone_N.to_numpy(zero_copy_only=False)
    ms_N[at_N], ms_N[~at_N] = with_zone // 1_000, without // 1_000
    return ms_N


def _milliseconds(text: str) -> int:
    try:
        return int(milliseconds(pa.array([text]))[0])
    except ValueError:
        return -1


def unreadable(label: str, row: str, complaint: str, fix: str) -> InputError:
    """One line: the file, the row, the field, the fix."""
    return InputError(f"{label}: {row}: {complaint}; {fix}")
