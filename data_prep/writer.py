"""Writes a log as the shards and the manifest of a prepared data set, into a folder that the caller makes appear."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.event_log import EventLog, Order, ranges, sort_events
from data_prep.requests import Requests, cut_requests
from data_prep.source import Source
from data_prep.user_hash import hash_users
from repro.data.schema import MANIFEST, Manifest, event_schema, request_schema

# N events, U users, R requests, C candidates

EVENTS_A_SHARD = 1 << 22
REQUESTS_A_SHARD = 1 << 18


def write_data_set(folder: Path, log: EventLog, source: Source, key: bytes, fingerprint: str) -> Manifest:
    """Write `log` into the empty `folder`: event shards, request shards, and last the manifest."""
    order = sort_events(log)
    requests = cut_requests(log.time[order.source_row], order, source.rule)
    items, item_code_N = np.unique(log.item, return_inverse=True)
    item_N = item_code_N.astype(np.int32)
    features = log.features(items.size)
    user_U = hash_users(log.user[order.source_row[order.user_begin[:-1]]], key)

    shards = [
        *_write(folder, "events", event_schema(features), _event_shards(log, item_N, order, user_U)),
        *_write(folder, "requests", request_schema(features), _request_shards(log, item_N, order, user_U, requests)),
    ]
    candidate_C = order.source_row[ranges(requests.candidate_begin, requests.candidate_count)]
    manifest = Manifest(
        name=source.name,
        source=source.description,
        licence=source.licence,
        parameters=parameters(source),
        fingerprint=fingerprint,
        inputs={path.name: sha256(path) for path in source.inputs},
        outputs={path.name: sha256(path) for path in shards},
        features=features,
        users=user_U.size,
        events=order.source_row.size,
        requests=requests.time.size,
        labels=candidate_C.size,
        positives=int(np.count_nonzero(log.label[candidate_C])),
        length_histogram=_length_histogram(requests.uih_end - requests.uih_begin),
    )
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def parameters(source: Source) -> dict[str, Any]:
    """All that decides the data set beside code and input files."""
    return {**source.parameters, "requests": dataclasses.asdict(source.rule)}


def sha256(path: Path) -> str:
    """SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(folder: Path, stem: str, schema: pa.Schema, tables: Iterable[list[pa.Array]]) -> list[Path]:
    paths = []
    for number, columns in enumerate(tables):
        path = folder / f"{stem}-{number:05d}.parquet"
        pq.write_table(
            pa.Table.from_arrays(columns, schema=schema),
            path,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in _ASCENDING],
            column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name in _ASCENDING},
        )
        paths.append(path)
    return paths


_ASCENDING = ("time", "uih_begin", "uih_end")
"""Columns that rise row by row for long stretches: their differences are small, their values are all different."""


def _event_shards(log: EventLog, item_N: np.ndarray, order: Order, user_U: np.ndarray) -> Iterable[list[pa.Array]]:
    for begin in range(0, order.source_row.size, EVENTS_A_SHARD):
        rows = order.source_row[begin : begin + EVENTS_A_SHARD]
        user = np.searchsorted(order.user_begin, np.arange(begin, begin + rows.size), side="right") - 1
        yield [
            pa.array(user_U[user]),
            pa.array(log.time[rows], pa.int64()),
            pa.array(item_N[rows]),
            *(pa.array(column[rows], pa.int32()) for column in (*log.attributes.values(), *log.actions.values())),
        ]


def _request_shards(
    log: EventLog, item_N: np.ndarray, order: Order, user_U: np.ndarray, requests: Requests
) -> Iterable[list[pa.Array]]:
    for begin in range(0, requests.time.size, REQUESTS_A_SHARD):
        part = slice(begin, begin + REQUESTS_A_SHARD)
        count = requests.candidate_count[part]
        rows = order.source_row[ranges(requests.candidate_begin[part], count)]
        offsets = pa.array(np.concatenate([[0], np.cumsum(count)]), pa.int32())
        yield [
            pa.array(user_U[requests.user[part]]),
            pa.array(requests.time[part], pa.int64()),
            pa.array(requests.uih_begin[part], pa.int64()),
            pa.array(requests.uih_end[part], pa.int64()),
            pa.ListArray.from_arrays(offsets, pa.array(item_N[rows])),
            *(pa.ListArray.from_arrays(offsets, pa.array(a[rows], pa.int32())) for a in log.attributes.values()),
            pa.ListArray.from_arrays(offsets, pa.array(log.label[rows], pa.float32())),
        ]


def _length_histogram(length_R: np.ndarray) -> dict[str, int]:
    exponent_R = np.frexp(length_R.astype(np.float64))[1]  # 0 -> 0; [2**(e-1), 2**e) -> e
    counts = np.bincount(exponent_R)
    return {str(0 if e == 0 else 2 ** (e - 1)): int(count) for e, count in enumerate(counts.tolist())}
