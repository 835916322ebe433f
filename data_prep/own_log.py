"""A user's own log: CSV (also .tsv, .gz) or Parquet files, with columns named on the command line.

    repro prepare csv --events 'logs/*.parquet' --columns user=member,item=sku,time=ts,label=bought --time-unit ms

Ids may be text or integers; text in delimited files always (so that 007 and 7 stay two ids). The label is a column of 0
and 1, or a comparison such as `rating>=4`. An optional action column says what the user did; each of its values gets an
id in the order in which it is first seen. Without one the action is the label.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.archives import RawFile, open_members
from data_prep.delimited import Layout, peek_line, read_delimited
from data_prep.event_log import EventLog
from data_prep.fields import Field, Values, any_number, calendar, epoch, identifier, integer, text_identifier
from data_prep.fields import milliseconds as text_milliseconds
from data_prep.parquet_log import read_parquet
from data_prep.requests import RequestRule
from data_prep.source import Source
from data_prep.vocabulary import Vocabulary
from repro.errors import InputError

NEEDED = ("user", "item", "time", "label")
OPTIONAL = ("action",)
TIME_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Units a second; `iso` is text such as 2024-05-01T12:00:00Z."""
MAX_ACTIONS = 1_000
DELIMITERS = (",", "\t", ";", "|")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_LABEL = re.compile(r"(?P<column>.+?)\s*>=\s*(?P<least>-?[0-9.]+)")
_FIX = "mend the file, or name other columns with --columns"


@dataclass(frozen=True, kw_only=True)
class OwnLog:
    """What the command line says of the log."""

    name: str
    """The data set's name."""
    files: tuple[Path, ...]
    """In the order in which equal times are to stay."""
    columns: dict[str, str]
    """user, item, time, label (column, or column>=number), and perhaps action -> column of the files."""
    time_unit: str
    """One of `TIME_UNITS`, or `iso`."""


def own_log(name: str, events: list[str], columns: str, time_unit: str) -> OwnLog:
    """Check what was given.

    Args:
        name: of the data set.
        events: file names or glob patterns.
        columns: `user=...,item=...,time=...,label=...[,action=...]`.
        time_unit: one of `TIME_UNITS`, or `iso`.

    Raises:
        InputError: a name that is none, a pattern without files, a role that is missing, unknown or given twice.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"--name {name!r}: use small letters, digits, '-', '_' and '.', at most 64")
    if not events:
        raise InputError("csv: name the files with --events 'FILES'")
    files: list[Path] = []
    for pattern in events:
        found = sorted(Path(path) for path in glob.glob(pattern, recursive=True))  # noqa: PTH207 (takes absolute patterns, too)
        found = [path for path in found if path.is_file() and path not in files]
        if not found:
            raise InputError(f"--events {pattern}: no such file")
        files += found
    roles: dict[str, str] = {}
    for assignment in columns.split(","):
        role, equals, column = assignment.partition("=")
        if not equals or not column or role not in (*NEEDED, *OPTIONAL) or role in roles:
            raise InputError(
                f"--columns {assignment!r}: give user=COLUMN,item=COLUMN,time=COLUMN,label=COLUMN[,action=COLUMN], "
                "each once"
            )
        roles[role] = column
    missing = [role for role in NEEDED if role not in roles]
    if missing:
        raise InputError(f"--columns: {', '.join(f'{role}=COLUMN' for role in missing)} is missing")
    if time_unit not in (*TIME_UNITS, "iso"):
        raise InputError(f"--time-unit {time_unit}: use {', '.join(TIME_UNITS)} or iso")
    return OwnLog(name=name, files=tuple(files), columns=roles, time_unit=time_unit)


def source(log: OwnLog) -> Source:
    """The data set made from `log`."""
    return Source(
        name=log.name,
        description=f"own log, {len(log.files)} file{'s' if len(log.files) > 1 else ''}",
        licence="your own",
        code=Path(__file__),
        inputs=log.files,
        parameters={"columns": log.columns, "time_unit": log.time_unit},
        rule=RequestRule(),
        read=lambda: read_own_log(log),
    )


def read_own_log(log: OwnLog) -> Iterator[EventLog]:
    """The files' events in parts, file by file.

    Raises:
        InputError: unreadable, a missing column, or a malformed row; names the file, row and field.
    """
    actions = Vocabulary("action")
    label, least = _label(log.columns["label"])
    for path in log.files:
        kinds = _parquet_kinds(path)
        time_kind = kinds.get(log.columns["time"])
        is_text = log.time_unit == "iso" and not _is_timestamp(time_kind)
        units_a_second = None if is_text else _units_a_second(log.time_unit, time_kind)
        for values in _read(path, log, label, least, kinds):
            label_N = values[label] >= least if least is not None else values[label] == 1
            action_N = label_N.astype(np.int32)
            if "action" in log.columns:
                action_N = actions.encode(values[log.columns["action"]])
                if len(actions) > MAX_ACTIONS:
                    raise InputError(
                        f"{path}: {log.columns['action']} has more than {MAX_ACTIONS:,} distinct values, too many for "
                        "an action; name another column"
                    )
            yield EventLog(
                user=values[log.columns["user"]],
                item=values[log.columns["item"]],
                time=_milliseconds(values[log.columns["time"]], units_a_second),
                label=label_N.astype(np.float32),
                actions={"action": action_N},
                action_vocabulary={"action": max(2, len(actions))},
            )


def _label(text: str) -> tuple[str, float | None]:
    comparison = _LABEL.fullmatch(text)
    if comparison is None:
        return text, None
    try:
        return comparison["column"], float(comparison["least"])
    except ValueError:
        raise InputError(f"--columns label={text}: {comparison['least']!r} is not a number") from None


def _read(path: Path, log: OwnLog, label: str, least: float | None, kinds: dict[str, pa.DataType]) -> Iterator[Values]:
    fields: dict[str, Field] = {}
    for role, column in {**log.columns, "label": label}.items():
        if column in fields:
            raise InputError(f"--columns: {column} is named twice; give each role a column of its own")
        fields[column] = _field(role, column, log.time_unit, least, kinds.get(column))
    if _is_parquet(path):
        return read_parquet(path, tuple(fields.values()), _FIX)
    raw = RawFile(path=path)
    return read_delimited(raw, tuple(fields.values()), Layout(delimiter=_delimiter(raw, fields), quoted=True, fix=_FIX))


def _field(role: str, column: str, time_unit: str, least: float | None, kind: pa.DataType | None) -> Field:
    """What a column must hold; `kind` is its type in a Parquet file, None in text."""
    match role:
        case "time":
            if time_unit == "iso" and not _is_timestamp(kind):
                return calendar(column)
            is_integer = kind is not None and (pa.types.is_integer(kind) or _is_timestamp(kind))
            return epoch(column, _units_a_second(time_unit, kind), kind=pa.int64() if is_integer else pa.float64())
        case "label":
            return integer(column, 0, 1) if least is None else any_number(column)
        case _:
            if kind is not None and pa.types.is_integer(kind):
                return identifier(column, is_private=role == "user", least=None)
            return text_identifier(column, is_private=role == "user")


def _is_parquet(path: Path) -> bool:
    return path.suffix in (".parquet", ".pq")


def _parquet_kinds(path: Path) -> dict[str, pa.DataType]:
    """Types of a Parquet file's columns; none for text."""
    if not _is_parquet(path):
        return {}
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException):
        return {}  # said better when the file is read
    return dict(zip(schema.names, schema.types, strict=True))


def _delimiter(file: RawFile, fields: dict[str, Field]) -> str:
    """The one between the header's names; a comma when it cannot be told."""
    for label, stream in open_members(file):
        try:
            header = peek_line(label, stream)
        except UnicodeDecodeError:
            break
        for delimiter in DELIMITERS:
            if fields.keys() <= {name.strip('"') for name in header.split(delimiter)}:
                return delimiter
    return ","


def _is_timestamp(kind: pa.DataType | None) -> bool:
    return kind is not None and pa.types.is_timestamp(kind)


def _units_a_second(time_unit: str, kind: pa.DataType | None) -> int:
    """The Parquet reader turns every timestamp into milliseconds."""
    return 1_000 if _is_timestamp(kind) else TIME_UNITS[time_unit]


def _milliseconds(time_N: Any, units_a_second: int | None) -> np.ndarray:
    """int64 (N,); no units: text."""
    if units_a_second is None:
        return text_milliseconds(time_N)
    if time_N.dtype == np.int64 and units_a_second >= 1_000:
        coarser_N: np.ndarray = time_N // (units_a_second // 1_000)
        return coarser_N
    return np.floor(time_N * (1_000 / units_a_second)).astype(np.int64)
