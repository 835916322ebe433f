"""Writes a log as the shards and the manifest of a prepared data set, into a folder that the caller makes appear.

    log in parts --staging--> codes --sorted_users--> users in order --request_file--> requests in order of time

Each arrow is one pass over the disk; memory does not grow with the number of events.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data_prep.event_log import EventLog
from data_prep.published import Lengths
from data_prep.request_file import RequestFile, Totals
from data_prep.requests import RequestRule, cut_requests
from data_prep.shards import ShardWriter
from data_prep.sorted_users import SortedUsers, UserSort, already_sorted
from data_prep.source import Source
from data_prep.staging import stage
from repro.data.schema import MANIFEST, Feature, Manifest, event_schema, request_schema
from repro.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is in memory at once, and the size of files. No event's place depends on them."""

    group_events: int = 1 << 21
    """Events sorted at once (and those of one more user)."""
    window_events: int = 1 << 20
    """Events moved at once."""
    request_groups: int = 64
    """Parts in which requests are sorted, where events need no sort."""
    event_shard: int = 1 << 22
    """Events a file."""
    request_shard: int = 1 << 18
    """Requests a file."""


SIZES = Sizes()


def write_data_set(
    folder: Path,
    source: Source,
    key: bytes,
    fingerprint: str,
    inputs: dict[str, str],
    log: Callable[[str], None],
    sizes: Sizes = SIZES,
) -> Manifest:
    """Write `source`'s log into the empty `folder`: event shards, request shards, and last the manifest.

    Args:
        folder: see above.
        source: see above.
        key: of the user hash.
        fingerprint: for the manifest.
        inputs: for the manifest.
        log: takes one line of progress at a time.
        sizes: see `Sizes`.

    Raises:
        InputError: malformed input, no request at all, other counts than the published ones.
    """
    write = _write_sorted if source.ordered_items is not None else _sort_and_write
    written = write(folder, source, key, log, sizes)
    manifest = Manifest(
        name=source.name,
        source=source.description,
        licence=source.licence,
        parameters=parameters(source),
        fingerprint=fingerprint,
        inputs=inputs,
        outputs={path.name: sha256(path) for path in written.paths},
        features=written.features,
        users=written.users,
        events=written.events,
        requests=written.totals.requests,
        labels=written.totals.labels,
        positives=written.totals.positives,
        length_histogram=written.totals.length_histogram(),
        quality=written.quality,
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


@dataclasses.dataclass(kw_only=True)
class _Written:
    features: tuple[Feature, ...]
    totals: Totals
    paths: tuple[Path, ...]
    users: int
    events: int
    quality: dict[str, int]


def _sort_and_write(folder: Path, source: Source, key: bytes, log: Callable[[str], None], sizes: Sizes) -> _Written:
    staged = stage(source.read(), folder, log)
    lengths = Lengths.of(staged.events_U)
    log(f"{source.name}: {staged.rows.rows:,} events read ({lengths.text()}); sorting and writing")
    if source.published is not None:
        source.published.check(source.name, staged.rows.rows + sum(staged.left_out.values()), lengths, log)
    users = UserSort(staged, key, folder, group_events=sizes.group_events, window_events=sizes.window_events)
    requests = RequestFile(folder, staged.features, _eligible(users.times, source.rule), users.groups)
    written = _write(folder, users, staged.features, source.rule, requests, sizes)
    written.quality = {
        "duplicate_events": users.duplicates,
        "out_of_order_events": users.out_of_order,
        **staged.left_out,
    }
    return written


def _write_sorted(folder: Path, source: Source, key: bytes, _: Callable[[str], None], sizes: Sizes) -> _Written:
    parts = iter(source.read())
    first = next((part for part in parts if len(part)), None)
    if first is None:
        raise InputError("the log has no events; give one with at least two events of one user")
    features = first.features(source.ordered_items or 0)
    requests = RequestFile(folder, features, _eligible(first.time, source.rule), sizes.request_groups)
    return _write(folder, already_sorted(_chain(first, parts), key), features, source.rule, requests, sizes)


def _chain(first: EventLog, parts: Iterable[EventLog]) -> Iterable[EventLog]:
    yield first
    del first  # a generator would keep it in memory to its end
    yield from parts


def _eligible(times: np.ndarray, rule: RequestRule) -> np.ndarray:
    return times if rule.first_time is None else times[times >= rule.first_time]


def _write(
    folder: Path,
    users: Iterable[SortedUsers],
    features: tuple[Feature, ...],
    rule: RequestRule,
    requests: RequestFile,
    sizes: Sizes,
) -> _Written:
    rng = np.random.default_rng(rule.seed)
    number, rows = 0, 0
    with ShardWriter(folder, "events", event_schema(features), sizes.event_shard) as event_shards:
        for part in users:
            time_N = part.events["time"]
            event_shards.append(
                [
                    pa.array(np.repeat(part.hash_U, np.diff(part.begin_U))),
                    pa.array(time_N),
                    *(pa.array(part.events[feature.name], pa.int32()) for feature in features),
                ]
            )
            cut = cut_requests(time_N, part.begin_U, rule, rng)
            requests.append(cut, part.hash_U, part.events["row"], part.events, rows)
            number += part.hash_U.size
            rows += time_N.size
    with ShardWriter(folder, "requests", request_schema(features), sizes.request_shard) as request_shards:
        totals = requests.write(request_shards)
    return _Written(
        features=features,
        totals=totals,
        paths=(*event_shards.paths, *request_shards.paths),
        users=number,
        events=rows,
        quality={},
    )
