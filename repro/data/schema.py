"""The prepared data set: the contract between `data_prep` (writes) and `repro.data` (reads).

A prepared data set is a folder:

    manifest.json               what it is, where it came from, checksums, counts (written last)
    events-00000.parquet ...    one row an event, sorted by (user, time, source order); users in the order of their
                                first event, so that nothing depends on a hash's value
    requests-00000.parquet ...  one row a request, sorted by (time, source order)
    columns/                    the reader's memory-mapped copy, made on first use; may be deleted

A request's history (UIH) is a range of event rows, `uih_begin <= row < uih_end`, all of one user and all strictly
before the request's time. It is read by range and never copied into the sample: a 21K-event history repeated for
each request would not fit a disk. A reader's cap keeps the latest events of the range.

Example: user 7 has events at rows 100..119. A request at the time of row 110 has uih_begin=100, uih_end=110 (fewer
when row 109 carries the same timestamp) and, as candidates, the items of rows 110..113 with their labels.

User ids leave `data_prep` only as keyed hashes (int64); the key is never stored with the data.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from repro.errors import InputError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
COLUMNS = "columns"
CANDIDATE_PREFIX = "candidate_"

EVENT_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("user", pa.int64()),  # keyed hash
    ("time", pa.int64()),  # milliseconds since the epoch (or since the log's own zero)
)
"""Fields of every event; after them one int32 column a feature listed in the manifest."""

REQUEST_FIELDS: tuple[tuple[str, pa.DataType], ...] = (
    ("user", pa.int64()),  # keyed hash
    ("time", pa.int64()),  # milliseconds; that of the first candidate
    ("uih_begin", pa.int64()),  # global event row, inclusive
    ("uih_end", pa.int64()),  # global event row, exclusive
)
"""Fields of every request; after them the lists of `request_schema`, one entry a candidate."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A categorical feature of an event; ids are 0..vocabulary-1."""

    name: str
    vocabulary: int
    of_candidate: bool
    """Whether a candidate carries it too (the item does; the action taken is known only afterwards)."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a prepared data set is and where it came from."""

    name: str
    source: str
    licence: str
    parameters: dict[str, Any]
    """Preparation parameters, the seed among them."""
    fingerprint: str
    """SHA-256 over schema version, preparation code, parameters and input checksums. Equal fingerprints mean equal data
    up to the user hash."""
    inputs: dict[str, str]
    """Input file name -> SHA-256."""
    outputs: dict[str, str]
    """Shard file name -> SHA-256."""
    features: tuple[Feature, ...]
    users: int
    events: int
    requests: int
    labels: int
    positives: int
    length_histogram: dict[str, int]
    """UIH length of the requests, uncapped: lower edge of a power-of-two bin (0, 1, 2, 4, ...) -> requests."""
    quality: dict[str, int] = dataclasses.field(default_factory=dict)
    """What was odd about the source's events -> how many. `duplicate_events` (user, time and item of an earlier event;
    kept), `out_of_order_events` (earlier than the user's event before it in the source; sorted), and whatever the
    source left out."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """JSON text, keys in field order."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def event_schema(features: tuple[Feature, ...]) -> pa.Schema:
    """Arrow schema of the event shards."""
    return pa.schema([*EVENT_FIELDS, *((feature.name, pa.int32()) for feature in features)])


def request_schema(features: tuple[Feature, ...]) -> pa.Schema:
    """Arrow schema of the request shards; one list column `candidate_<feature>` a feature that candidates carry."""
    return pa.schema(
        [
            *REQUEST_FIELDS,
            *((CANDIDATE_PREFIX + feature.name, pa.list_(pa.int32())) for feature in features if feature.of_candidate),
            ("label", pa.list_(pa.float32())),  # 0 or 1, one a candidate
        ]
    )


def read_manifest(folder: Path) -> Manifest:
    """Read and check `folder`'s manifest.

    Raises:
        InputError: no such data set, unreadable JSON, missing or unknown fields, another schema version.
    """
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no prepared data set here; run `repro prepare {folder.name}`") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: unreadable ({error}); prepare it again with `repro prepare {folder.name} --force`"
        ) from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{path}: schema version {version}, this release reads {SCHEMA_VERSION}; "
            f"prepare it again with `repro prepare {folder.name} --force`"
        )
    try:
        raw["features"] = tuple(Feature(**feature) for feature in raw["features"])
        manifest = Manifest(**raw)
        for name in ("users", "events", "requests", "labels"):
            if not (isinstance(raw[name], int) and raw[name] >= 1):
                raise TypeError(f"{name} must be an integer >= 1, got {raw[name]!r}")
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: {error}; prepare it again with `repro prepare {folder.name} --force`") from None
    return manifest
