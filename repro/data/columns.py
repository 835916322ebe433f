"""The reader's columns: Parquet shards turned once into `.npy` files that any number of ranks map into memory.

    columns/<key>/request_time.npy ...     key: hash of the manifest's fingerprint and output checksums

Shards are checked (checksum, counts, ranges, ids) while they are turned, so a folder of columns is always good.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repro.data.schema import CANDIDATE_PREFIX, COLUMNS, Feature, Manifest, event_schema, request_schema
from repro.errors import InputError

# R requests, N events, C candidates of all requests

EVENT_PREFIX = "event_"
BATCH_ROWS = 1 << 18


def open_columns(folder: Path, manifest: Manifest) -> dict[str, np.ndarray]:
    """Columns by name, memory-mapped and read-only; made on first use.

    Safe for many processes at once. Where the folder cannot be written the columns are read into memory.

    Raises:
        InputError: a missing or damaged shard, or shards that contradict the manifest; names the file and the fix.
    """
    for name in manifest.outputs:
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing; {_fix(folder)}")
    shapes = _shapes(manifest)
    ready = folder / COLUMNS / _key(manifest)
    if not ready.is_dir():
        try:
            partial = _partial(folder / COLUMNS)
        except OSError:
            return _fill(folder, manifest, lambda _, dtype, rows: np.empty(rows, dtype))
        try:
            columns = _fill(folder, manifest, lambda name, dtype, rows: _new_file(partial / f"{name}.npy", dtype, rows))
            for column in columns.values():
                column.flush()  # on disk before the rename: other hosts must not see holes, nor we after a power cut
            # Another process may have been first; its columns are the same.
            with contextlib.suppress(OSError):
                partial.rename(ready)
        except OSError as error:
            raise InputError(f"{partial}: cannot be written ({error.strerror or error}); free some space") from None
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return {name: _map(ready / f"{name}.npy", dtype, rows, folder) for name, (dtype, rows) in shapes.items()}


def _key(manifest: Manifest) -> str:
    value = json.dumps([manifest.fingerprint, sorted(manifest.outputs.items())])
    return hashlib.sha256(value.encode()).hexdigest()[:16]


def _fix(folder: Path) -> str:
    return f"run `repro prepare {folder.name} --force`"


def _shapes(manifest: Manifest) -> dict[str, tuple[np.dtype, int]]:
    int64, int32 = np.dtype(np.int64), np.dtype(np.int32)
    return {
        "request_time": (int64, manifest.requests),
        "request_user": (int64, manifest.requests),
        "uih_begin": (int64, manifest.requests),
        "uih_end": (int64, manifest.requests),
        "candidate_offsets": (int64, manifest.requests + 1),
        "label": (np.dtype(np.float32), manifest.labels),
        **{CANDIDATE_PREFIX + f.name: (int32, manifest.labels) for f in manifest.features if f.of_candidate},
        "event_time": (int64, manifest.events),
        **{EVENT_PREFIX + f.name: (int32, manifest.events) for f in manifest.features},
    }


def _partial(columns: Path) -> Path:
    columns.mkdir(exist_ok=True)
    partial = columns / f".partial-{secrets.token_hex(8)}"
    partial.mkdir()  # not tempfile's 0700: colleagues who may read the data set may read its columns
    return partial


def _new_file(path: Path, dtype: np.dtype, rows: int) -> np.memmap:
    column = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(rows,))
    with path.open("r+b") as file:  # a full disk shows here as an error, later it would kill the process (SIGBUS)
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return column


def _map(path: Path, dtype: np.dtype, rows: int, folder: Path) -> np.ndarray:
    try:
        column = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: unreadable ({error}); {_fix(folder)}") from None
    if column.dtype != dtype or column.shape != (rows,):
        raise InputError(f"{path}: {column.dtype} {column.shape} instead of {dtype} ({rows},); {_fix(folder)}")
    # A plain view: indexing the memmap class costs several times as much.
    return column.view(np.ndarray)


Column = TypeVar("Column", bound=np.ndarray)


def _fill(folder: Path, manifest: Manifest, allocate: Callable[[str, np.dtype, int], Column]) -> dict[str, Column]:
    columns = {name: allocate(name, dtype, rows) for name, (dtype, rows) in _shapes(manifest).items()}
    users = _fill_events(folder, manifest, columns)
    _fill_requests(folder, manifest, columns)
    _check_requests(folder, columns, users)
    return columns


def _fill_events(folder: Path, manifest: Manifest, columns: dict[str, Any]) -> np.ndarray:
    """Fill the event columns; returns int64 (2, users): each user's first row, and hash."""
    at = 0
    last_user, last_time = None, 0
    begins, users = [], []
    for path, batch in _batches(folder, manifest, "events", event_schema(manifest.features)):
        rows = slice(at, at + batch.num_rows)
        if rows.stop > manifest.events:
            raise InputError(f"{path}: more events than the manifest's {manifest.events:,}; {_fix(folder)}")
        user, time = batch.column("user").to_numpy(), batch.column("time").to_numpy()
        columns["event_time"][rows] = time
        for feature in manifest.features:
            column = batch.column(feature.name).to_numpy()
            _check_ids(column, feature, path, folder)
            columns[EVENT_PREFIX + feature.name][rows] = column
        if not batch.num_rows:
            continue
        is_first = np.concatenate([[user[0] != last_user], user[1:] != user[:-1]])
        earlier = np.diff(time, prepend=last_time if last_user is not None else time[0]) < 0
        if (earlier & ~is_first).any():
            raise InputError(f"{path}: events of a user are not in time order; {_fix(folder)}")
        first = np.flatnonzero(is_first)
        begins.append(first + at)
        users.append(user[first])
        last_user, last_time, at = user[-1], time[-1], rows.stop
    if at != manifest.events:
        raise InputError(f"{folder}: {at:,} events instead of the manifest's {manifest.events:,}; {_fix(folder)}")
    return np.stack([np.concatenate(begins), np.concatenate(users)])


def _fill_requests(folder: Path, manifest: Manifest, columns: dict[str, Any]) -> None:
    at, candidate_at = 0, 0
    columns["candidate_offsets"][0] = 0
    for path, batch in _batches(folder, manifest, "requests", request_schema(manifest.features)):
        counts = batch.column("label").value_lengths().to_numpy()
        rows = slice(at, at + batch.num_rows)
        candidates = slice(candidate_at, candidate_at + int(counts.sum()))
        if rows.stop > manifest.requests or candidates.stop > manifest.labels:
            raise InputError(f"{path}: more requests or candidates than the manifest says; {_fix(folder)}")
        columns["request_user"][rows] = batch.column("user").to_numpy()
        columns["request_time"][rows] = batch.column("time").to_numpy()
        columns["uih_begin"][rows] = batch.column("uih_begin").to_numpy()
        columns["uih_end"][rows] = batch.column("uih_end").to_numpy()
        columns["candidate_offsets"][at + 1 : rows.stop + 1] = candidate_at + np.cumsum(counts)
        columns["label"][candidates] = batch.column("label").flatten().to_numpy()
        for feature in manifest.features:
            if feature.of_candidate:
                name = CANDIDATE_PREFIX + feature.name
                if not np.array_equal(batch.column(name).value_lengths().to_numpy(), counts):
                    raise InputError(f"{path}: {name} and label differ in number; {_fix(folder)}")
                ids = batch.column(name).flatten().to_numpy()
                _check_ids(ids, feature, path, folder)
                columns[name][candidates] = ids
        at, candidate_at = rows.stop, candidates.stop
    if (at, candidate_at) != (manifest.requests, manifest.labels):
        raise InputError(f"{folder}: fewer requests or candidates than the manifest says; {_fix(folder)}")


def _check_requests(folder: Path, columns: dict[str, Any], users: np.ndarray) -> None:
    """No request reads another user's events, or any at or after its own time; requests are in time order."""
    begin_R, end_R, time_R = columns["uih_begin"], columns["uih_end"], columns["request_time"]
    event_time = columns["event_time"]
    inside_R = (begin_R >= 0) & (begin_R < end_R) & (end_R <= event_time.size)
    _require(inside_R, "a history is not a range of events", folder)
    user_begin, user_hash = users
    first_R, last_R = (np.searchsorted(user_begin, rows, side="right") - 1 for rows in (begin_R, end_R - 1))
    same_R = (first_R == last_R) & (user_hash[first_R] == columns["request_user"])
    _require(same_R, "a history holds another user's events", folder)
    _require(event_time[end_R - 1] < time_R, "a history holds an event at or after its request", folder)
    _require(np.diff(time_R) >= 0, "requests are not in time order", folder)
    _require(np.diff(columns["candidate_offsets"]) >= 1, "a request has no candidate", folder)
    _require(np.isin(columns["label"], (0, 1)), "a label is neither 0 nor 1", folder)


def _require(good: np.ndarray, message: str, folder: Path) -> None:
    if not good.all():
        raise InputError(f"{folder}: {message} (first at {int(np.argmin(good))}); {_fix(folder)}")


def _check_ids(ids: np.ndarray, feature: Feature, path: Path, folder: Path) -> None:
    if ids.size and not (ids.min() >= 0 and ids.max() < feature.vocabulary):
        raise InputError(
            f"{path}: {feature.name} ids {ids.min()}..{ids.max()} outside 0..{feature.vocabulary - 1}; {_fix(folder)}"
        )


def _batches(folder: Path, manifest: Manifest, stem: str, schema: pa.Schema) -> Iterator[tuple[Path, pa.RecordBatch]]:
    for name in sorted(manifest.outputs):
        if not name.startswith(f"{stem}-"):
            continue
        path = folder / name
        try:
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            if checksum != manifest.outputs[name]:
                raise InputError(f"{path}: damaged (its checksum is not the manifest's); {_fix(folder)}")
            with pq.ParquetFile(path) as shard:
                if not shard.schema_arrow.equals(schema):
                    raise InputError(f"{path}: columns are not those of the manifest; {_fix(folder)}")
                yield from ((path, batch) for batch in shard.iter_batches(batch_size=BATCH_ROWS))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: unreadable ({error}); {_fix(folder)}") from None
