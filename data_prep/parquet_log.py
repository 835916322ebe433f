"""Reads Parquet files in parts, checking every field; a bad row is named by its number in the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.fields import Field, Values, check, unreadable
from repro.errors import InputError

PART_ROWS = 1 << 20


def read_parquet(path: Path, fields: tuple[Field, ...], fix: str) -> Iterator[Values]:
    """The file's rows in parts, in their order. Columns are found by name; others are not read.

    Raises:
        InputError: not Parquet, damaged, a missing column or one of another type, missing or bad values.
    """
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            missing = [field.name for field in fields if field.name not in names]
            if missing:
                raise InputError(
                    f"{path}: no column {', '.join(missing)} (it must have {', '.join(f.name for f in fields)}); {fix}"
                )
            rows = 0
            for batch in file.iter_batches(PART_ROWS, columns=[field.name for field in fields]):
                values = {field.name: _column(path, batch, field, rows, fix) for field in fields}
                bad = check(fields, values)
                if bad is not None:
                    row, field = bad
                    shown = "something else" if field.is_private else values[field.name][row]
                    complaint = f"{field.name} must be {field.wanted}, got {shown}"
                    raise unreadable(str(path), f"row {rows + row}", complaint, fix)
                rows += batch.num_rows
                yield values
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{path}: cannot be read as Parquet, or is damaged or cut short ({reason}); remove it and get it again"
        ) from None


def _column(path: Path, batch: pa.RecordBatch, field: Field, rows: int, fix: str) -> Any:
    column = batch.column(field.name)
    if column.null_count:
        row = rows + column.is_null().to_numpy(zero_copy_only=False).argmax()
        raise unreadable(str(path), f"row {row}", f"{field.name} must be {field.wanted}, got nothing", fix)
    if pa.types.is_timestamp(column.type) and pa.types.is_integer(field.type):
        column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_string(field.type) and not _is_spelled(column.type):
            raise pa.ArrowInvalid
        return field.of(column if column.type == field.type else column.cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputError(f"{path}: {field.name} must be {field.wanted}, it has {column.type} values; {fix}") from None


def _is_spelled(kind: pa.DataType) -> bool:
    """Whether values have one spelling as text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
