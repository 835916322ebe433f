"""Reads a prepared data set: which requests form global batch t, and their histories by range.

A global batch is a function of (data set, size, t) alone, so every arm and every world size of one recipe sees the
same requests in the same order, and any rank can start at any t. No seed takes part: time order leaves nothing to draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from repro.data.columns import EVENT_PREFIX, open_columns
from repro.data.schema import CANDIDATE_PREFIX, Manifest, read_manifest
from repro.errors import InputError

# R requests of a block, T UIH events of theirs in all, C candidates of theirs in all


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestBlock:
    """Some requests, jagged: request r owns UIH events `sum(uih_lengths[:r]) .. sum(uih_lengths[:r+1])`, likewise
    candidates. Every array is the caller's own, none a view of the file.
    """

    request_id: np.ndarray
    """(R,) int64: row of the request in the data set."""
    request_time: np.ndarray
    """(R,) int64, ms."""
    uih_lengths: np.ndarray
    """(R,) int64, after the cap."""
    candidate_counts: np.ndarray
    """(R,) int64."""
    uih_time: np.ndarray
    """(T,) int64, ms; all strictly before the request's time."""
    uih: dict[str, np.ndarray]
    """Feature -> (T,) int32."""
    candidate: dict[str, np.ndarray]
    """Feature of candidates -> (C,) int32."""
    label: np.ndarray
    """(C,) float32, 0 or 1."""


class PreparedDataset:
    """A prepared data set, memory-mapped. R is here the number of all requests, N of events, C of candidates."""

    def __init__(self, manifest: Manifest, columns: dict[str, np.ndarray], requests: slice | None = None) -> None:
        """Use `open`, and `split_by_time` for a part of the requests."""
        self.manifest = manifest
        """Of the whole data set, also when this is a part of it."""
        self._columns = columns
        rows = requests or slice(0, columns["request_time"].size)
        self._first_row = rows.start
        self.request_time = columns["request_time"][rows]
        """(R,) int64, ms, ascending."""
        self.request_user = columns["request_user"][rows]
        """(R,) int64, keyed hash."""
        self.uih_begin = columns["uih_begin"][rows]
        """(R,) int64, event row, inclusive."""
        self.uih_end = columns["uih_end"][rows]
        """(R,) int64, event row, exclusive."""
        self.candidate_offsets = columns["candidate_offsets"][rows.start : rows.stop + 1]
        """(R + 1,) int64, into candidates of the whole data set."""
        self.label = columns["label"]
        """(C,) float32."""
        self.event_time = columns["event_time"]
        """(N,) int64, ms."""
        self._candidate = {
            feature.name: columns[CANDIDATE_PREFIX + feature.name]
            for feature in manifest.features
            if feature.of_candidate
        }
        self._event = {feature.name: columns[EVENT_PREFIX + feature.name] for feature in manifest.features}

    @classmethod
    def open(cls, folder: Path) -> PreparedDataset:
        """Open `folder`. The first time, its columns are unpacked beside the shards (or, where it cannot be written,
        into memory); after that it takes milliseconds.

        Raises:
            InputError: no prepared data set, or a damaged one; names the file and the fix.
        """
        manifest = read_manifest(folder)
        return cls(manifest, open_columns(folder, manifest))

    def split_by_time(self, eval_share: float, gap_ms: int = 0) -> TimeSplit:
        """Earlier requests to train on, the last `eval_share` of them (0..1) to evaluate on.

        Requests of one moment stay together. Histories of the evaluation's requests reach back into training time, as
        they do when a model serves; nothing of training reaches forward, but the labels of its last requests, which are
        known only when their candidates have been seen: `gap_ms` leaves out the requests of that long before the first
        one evaluated.

        Raises:
            InputError: a share or gap that leaves nothing on one side.
        """
        rows = len(self)
        if not (0 < eval_share < 1 and gap_ms >= 0):
            raise InputError(f"split: eval_share must be in (0, 1) and gap_ms >= 0, got {eval_share} and {gap_ms}")
        boundary = self.request_time[min(rows - 1, round(rows * (1 - eval_share)))]
        first_eval = int(np.searchsorted(self.request_time, boundary))
        last_train = int(np.searchsorted(self.request_time, boundary - gap_ms))
        if not last_train:
            raise InputError(
                f"split: {self.name} has no request to train on before the evaluation; lower its share or gap"
            )
        begin = self._first_row
        parts = slice(begin, begin + last_train), slice(begin + first_eval, begin + rows)
        return TimeSplit(*(PreparedDataset(self.manifest, self._columns, part) for part in parts))

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.manifest.name

    def __len__(self) -> int:
        """Number of requests."""
        return self.request_time.size

    @property
    def candidate_item(self) -> np.ndarray:
        """(C,) int32."""
        return self._candidate["item"]

    def candidate_feature(self, name: str) -> np.ndarray:
        """(C,) int32, memory-mapped; of the whole data set, as `candidate_offsets` counts.

        Raises:
            InputError: no such feature.
        """
        if name not in self._candidate:
            raise InputError(f"{self.name} has no candidate feature {name!r}; there are {', '.join(self._candidate)}")
        return self._candidate[name]

    def event_feature(self, name: str) -> np.ndarray:
        """(N,) int32, memory-mapped.

        Raises:
            InputError: no such feature.
        """
        if name not in self._event:
            raise InputError(f"{self.name} has no event feature {name!r}; there are {', '.join(self._event)}")
        return self._event[name]

    def global_batches(self, global_batch: int) -> int:
        """Whole global batches of that many requests; a last partial one is never trained on."""
        return len(self) // global_batch

    def global_rows(self, t: int, global_batch: int) -> np.ndarray:
        """Requests of global batch t (from 0) in time order, int64 (global_batch,).

        Raises:
            InputError: t is past the last whole batch.
        """
        available = self.global_batches(global_batch)
        if not 0 <= t < available:
            raise InputError(
                f"{self.name} has {available} global batches of {global_batch} requests, no batch {t} (from 0); "
                "use fewer steps, a smaller batch, fewer GPUs or more data"
            )
        return np.arange(t * global_batch, (t + 1) * global_batch, dtype=np.int64)

    def rank_rows(self, t: int, global_batch: int, rank: int, world: int) -> np.ndarray:
        """What independent readers would deliver: request i of batch t goes to rank i mod world. int64.

        Raises:
            InputError: as `global_rows`.
        """
        return self.global_rows(t, global_batch)[rank::world]

    def uih_lengths(self, rows: np.ndarray, max_uih: int) -> np.ndarray:
        """UIH events of requests `rows`, capped at `max_uih`; int64 (R,)."""
        return np.minimum(self.uih_end[rows] - self.uih_begin[rows], max_uih)

    def candidate_counts(self, rows: np.ndarray) -> np.ndarray:
        """Candidates of requests `rows`; int64 (R,)."""
        counts: np.ndarray = self.candidate_offsets[rows + 1] - self.candidate_offsets[rows]
        return counts

    def read(self, rows: np.ndarray, max_uih: int) -> RequestBlock:
        """Requests `rows` (int64, any order) with the latest `max_uih` events of each history."""
        uih_lengths = self.uih_lengths(rows, max_uih)
        candidate_counts = self.candidate_counts(rows)
        uih_end, candidate_begin = self.uih_end[rows], self.candidate_offsets[rows]
        events = _Ranges(uih_end - uih_lengths, uih_end)
        candidates = _Ranges(candidate_begin, candidate_begin + candidate_counts)
        return RequestBlock(
            request_id=rows.astype(np.int64) + self._first_row,
            request_time=self.request_time[rows],
            uih_lengths=uih_lengths,
            candidate_counts=candidate_counts,
            uih_time=events.of(self.event_time),
            uih={name: events.of(column) for name, column in self._event.items()},
            candidate={name: candidates.of(column) for name, column in self._candidate.items()},
            label=candidates.of(self.label),
        )


class TimeSplit(NamedTuple):
    """Two parts of one data set; every request of `train` is earlier than every one of `evaluation`."""

    train: PreparedDataset
    evaluation: PreparedDataset


class _Ranges:
    """Row ranges to be read from several columns, one after another."""

    def __init__(self, begin_R: np.ndarray, end_R: np.ndarray) -> None:
        self._slices = [slice(b, e) for b, e in zip(begin_R.tolist(), end_R.tolist(), strict=True)]

    def of(self, column: np.ndarray) -> np.ndarray:
        # Slices, not an index array: histories are long, and copying a range is memcpy.
        return np.concatenate([column[:0], *(column[part] for part in self._slices)])
