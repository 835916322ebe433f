"""Reads a prepared data set: which requests form global batch t, and their histories by range.

A global batch is a function of (data set, size, t) alone, so every arm and every world size of one recipe sees the
same requests in the same order, and any rank can start at any t.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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

    def __init__(self, manifest: Manifest, columns: dict[str, np.ndarray]) -> None:
        """Use `open`."""
        self.manifest = manifest
        self.request_time = columns["request_time"]
        """(R,) int64, ms, ascending."""
        self.request_user = columns["request_user"]
        """(R,) int64, keyed hash."""
        self.uih_begin = columns["uih_begin"]
        """(R,) int64, event row, inclusive."""
        self.uih_end = columns["uih_end"]
        """(R,) int64, event row, exclusive."""
        self.candidate_offsets = columns["candidate_offsets"]
        """(R + 1,) int64."""
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
            request_id=rows.astype(np.int64),
            request_time=self.request_time[rows],
            uih_lengths=uih_lengths,
            candidate_counts=candidate_counts,
            uih_time=events.of(self.event_time),
            uih={name: events.of(column) for name, column in self._event.items()},
            candidate={name: candidates.of(column) for name, column in self._candidate.items()},
            label=candidates.of(self.label),
        )


class _Ranges:
    """Row ranges to be read from several columns, one after another."""

    def __init__(self, begin_R: np.ndarray, end_R: np.ndarray) -> None:
        self._slices = [slice(b, e) for b, e in zip(begin_R.tolist(), end_R.tolist(), strict=True)]

    def of(self, column: np.ndarray) -> np.ndarray:
        # Slices, not an index array: histories are long, and copying a range is memcpy.
        return np.concatenate([column[:0], *(column[part] for part in self._slices)])
