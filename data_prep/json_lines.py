"""Reads JSON lines in parts, checking every field; a bad row is named by line and field."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.json as arrow_json

from data_prep.archives import RawFile, open_members
from data_prep.fields import Field, Values, check, unreadable
from repro.errors import InputError

BLOCK_BYTES = 16 << 20


def read_json_lines(file: RawFile, fields: tuple[Field, ...], fix: str) -> Iterator[Values]:
    """The file's objects in parts, one a line, in their order; keys that are no field are not read.

    Raises:
        InputError: unreadable file, a line that is no JSON object, a missing or bad value.
    """
    schema = pa.schema([(field.name, field.type) for field in fields])
    for label, stream in open_members(file):
        if not stream.peek(1):
            raise InputError(f"{label}: is empty; {fix}")
        rows = 0
        try:
            reader = arrow_json.open_json(
                stream,
                read_options=arrow_json.ReadOptions(block_size=BLOCK_BYTES),
                parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            for part in reader:
                if any(part.column(field.name).null_count for field in fields):
                    raise _bad_line(file, label, fields, rows, "a value is missing", fix)
                values = {field.name: field.of(part.column(field.name)) for field in fields}
                if check(fields, values) is not None:
                    raise _bad_line(file, label, fields, rows, "a value out of range", fix)
                rows += part.num_rows
                yield values
        except pa.ArrowInvalid as error:
            raise _bad_line(file, label, fields, rows, str(error).splitlines()[0], fix) from None


def _bad_line(
    file: RawFile, label: str, fields: tuple[Field, ...], good_rows: int, reason: str, fix: str
) -> InputError:
    """The first malformed line after `good_rows`, in words. Slow: it only runs once reading has failed."""
    for other, stream in open_members(file):
        if other != label:
            continue
        row = 0
        for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8", errors="replace"), start=1):
            row += bool(line.strip())
            if row <= good_rows or not line.strip():
                continue
            try:
                found = json.loads(line)
            except ValueError as error:
                return unreadable(label, f"line {number}", f"not JSON ({error})", fix)
            if not isinstance(found, dict):
                return unreadable(label, f"line {number}", "not a JSON object", fix)
            for field in fields:
                value = found.get(field.name)
                is_kind = isinstance(value, str) if pa.types.is_string(field.type) else isinstance(value, int | float)
                complaint = field.complaint(None if value is None else str(value))
                if complaint or not is_kind:
                    return unreadable(label, f"line {number}", complaint or f"{field.name} must be {field.wanted}", fix)
    return InputError(f"{label}: {reason}; {fix}")
