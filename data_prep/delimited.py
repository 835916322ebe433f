"""Reads delimited text (CSV, TSV, `::`) in parts, checking every field; a bad row is named by line and field."""

from __future__ import annotations

import csv as plain_csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as csv

from data_prep.archives import RawFile, open_members
from data_prep.fields import Field, Values, check, unreadable
from repro.errors import InputError

BLOCK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How lines are written."""

    delimiter: str = ","
    """One character, or one twice (`::`)."""
    columns: tuple[str, ...] | None = None
    """All columns in order, where the file has no header."""
    quoted: bool = False
    """Values may be in double quotes."""
    fix: str
    """What to do about a bad line."""


def read_delimited(file: RawFile, fields: tuple[Field, ...], layout: Layout) -> Iterator[Values]:
    """The file's rows in parts, in their order; of an archive, one wanted member after another.

    Columns are found by the header's names, in any order; others are not read. Empty lines are skipped.

    Raises:
        InputError: unreadable file, no or another header, a malformed row.
    """
    for label, stream in open_members(file):
        header = layout.columns if layout.columns is not None else read_header(label, stream, layout, fields)
        rows = 0
        for part in _parts(label, stream, header, fields, layout):
            if isinstance(part, _Broken):
                raise _bad_row(file, label, header, fields, layout, rows, part.reason)
            values = {field.name: field.of(part.column(field.name)) for field in fields}
            if check(fields, values) is not None:
                raise _bad_row(file, label, header, fields, layout, rows, "a value out of range")
            rows += part.num_rows
            yield values


def read_header(label: str, stream: io.BufferedReader, layout: Layout, fields: tuple[Field, ...]) -> tuple[str, ...]:
    """Column names of the first line, which stays in the stream.

    Raises:
        InputError: empty file, not UTF-8, or a field is not among the names.
    """
    try:
        text = peek_line(label, stream)
    except UnicodeDecodeError:
        raise InputError(f"{label}: line 1: the header is not UTF-8 text; convert the file to UTF-8") from None
    header = tuple(next(_rows(io.StringIO(text), layout), ()))
    wanted = ", ".join(field.name for field in fields)
    missing = [field.name for field in fields if field.name not in header]
    if not text.strip():
        raise InputError(f"{label}: is empty; it must have the columns {wanted}; {layout.fix}")
    if missing:
        raise InputError(
            f"{label}: line 1: no column {', '.join(missing)} (the header must have {wanted}, separated by "
            f"{layout.delimiter!r}); {layout.fix}"
        )
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"{label}: line 1: two columns are called {twice}; {layout.fix}")
    return header


def peek_line(label: str, stream: io.BufferedReader) -> str:
    """The first line, without taking it out of the stream."""
    start = stream.peek(HEADER_BYTES)[:HEADER_BYTES]
    line, end, _ = start.partition(b"\n")
    if not end and len(line) == HEADER_BYTES:
        raise InputError(f"{label}: line 1 is longer than {HEADER_BYTES:,} bytes; this is no such log")
    return line.decode("utf-8-sig").rstrip("\r")


@dataclass(frozen=True)
class _Broken:
    """Arrow's reason for going no further."""

    reason: str


def _parts(
    label: str, stream: io.BufferedReader, header: tuple[str, ...], fields: tuple[Field, ...], layout: Layout
) -> Iterator[pa.RecordBatch | _Broken]:
    names = list(_spread(header, layout))
    blanks = [name for name in names if name.startswith(_BLANK)]
    try:
        reader = csv.open_csv(
            stream,
            read_options=csv.ReadOptions(
                block_size=BLOCK_BYTES, column_names=names, skip_rows=0 if layout.columns is not None else 1
            ),
            parse_options=csv.ParseOptions(
                delimiter=layout.delimiter[0], quote_char='"' if layout.quoted else False, newlines_in_values=False
            ),
            convert_options=csv.ConvertOptions(
                column_types={**{field.name: field.type for field in fields}, **dict.fromkeys(blanks, pa.string())},
                include_columns=[*(field.name for field in fields), *blanks],
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        for part in reader:
            if any(len(value) for name in blanks for value in part.column(name).unique().to_pylist()):
                yield _Broken(f"fields are not separated by {layout.delimiter!r}")
                return
            yield part
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        if "Empty CSV file" in reason or "no more data" in reason.lower():
            if layout.columns is not None:
                raise InputError(f"{label}: is empty; {layout.fix}") from None
            return  # a header and nothing else
        yield _Broken(reason)


_BLANK = "\0"


def _spread(header: tuple[str, ...], layout: Layout) -> Iterator[str]:
    """Names of the columns that Arrow sees: of a doubled delimiter it makes empty columns in between."""
    for place, name in enumerate(header):
        if place and len(layout.delimiter) == 2:
            yield f"{_BLANK}{place}"
        yield name


def _rows(lines: io.TextIOBase, layout: Layout) -> Iterator[list[str]]:
    if len(layout.delimiter) > 1:
        return (line.rstrip("\r\n").split(layout.delimiter) if line.strip("\r\n") else [] for line in lines)
    if layout.quoted:
        return iter(plain_csv.reader(lines, delimiter=layout.delimiter))
    return iter(plain_csv.reader(lines, delimiter=layout.delimiter, quoting=plain_csv.QUOTE_NONE))


def _bad_row(
    file: RawFile,
    label: str,
    header: tuple[str, ...],
    fields: tuple[Field, ...],
    layout: Layout,
    good_rows: int,
    reason: str,
) -> InputError:
    """The first malformed row after `good_rows`, in words. Slow: it only runs once reading has failed."""
    place = {name: column for column, name in enumerate(header)}
    for other, stream in open_members(file):
        if other != label:
            continue
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n")
        row = 0 if layout.columns is not None else -1
        try:
            for number, found in enumerate(_rows(text, layout), start=1):
                row += bool(found)
                if not found or row <= good_rows:
                    continue
                if len(found) != len(header):
                    return unreadable(
                        label, f"line {number}", f"{len(found)} fields instead of {len(header)}", layout.fix
                    )
                for field in fields:
                    complaint = field.complaint(found[place[field.name]].rstrip("\r"))
                    if complaint:
                        return unreadable(label, f"line {number}", complaint, layout.fix)
        except plain_csv.Error as error:
            return unreadable(label, f"after {row:,} rows", str(error), layout.fix)
    return InputError(f"{label}: {reason}; {layout.fix}")
