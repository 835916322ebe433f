"""Which embedding rows a global batch touches, counted from the real ids of its requests.

Rows decide what prioritized updates cost: how many distinct rows each rank asks for, how many of them the batch before
updates (*late*) and how many the batch after reads (*urgent*), both over all ranks (`repro.embedding.collision`).

At 256 GPUs and long histories a global batch holds more ids than it pays to count. Rows of large tables are then
sampled by a hash of the row: a row is in every count or in none, so each count times the sampling factor k is unbiased,
with a relative standard error of at most sqrt((k - 1) / n) for n distinct rows. Small tables are counted in full.

Example: 80 M ids with the threshold of 32 M: k = 4; of a rank's 100,000 rows 25,000 are counted, error 0.5 %.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from repro.data.dataset import PreparedDataset
from repro.embedding.collision import distinct_rows

# R ranks, S requests of a global batch, D distinct rows

MOST_IDS = 1 << 25
"""Ids of a global batch and table beyond which rows are sampled; so many take about a second to count."""
ALWAYS_COUNTED = 1 << 20
"""Tables of at most so many rows are counted in full: a bitmap over them stays in cache."""
_CACHED_BATCHES = 32
_SCAN_ROWS_AN_ID = 256
"""Rows of a bitmap scanned in the time of sorting one id."""
_SAMPLE_HASH = np.uint32(0x85EBCA6B)
_OWNER_HASH = np.uint32(0x9E3779B1)


@dataclass(frozen=True, kw_only=True, eq=False)
class RowTraffic:
    """Rows of one global batch as a deduplicated exchange moves them. All float64 (R,), since they may be estimates."""

    asked: np.ndarray
    """Distinct rows each rank needs."""
    asked_late: np.ndarray
    """Those that the batch before touches on any rank: to be looked up only after its update."""
    asked_urgent: np.ndarray
    """Those that the batch after touches on any rank: to be updated first."""
    served: np.ndarray
    """Rows each owner is asked for, summed over the ranks that ask."""
    served_late: np.ndarray
    served_urgent: np.ndarray
    owned: np.ndarray
    """Distinct rows each owner is asked for."""
    owned_urgent: np.ndarray

    def with_share(self, share: float) -> RowTraffic:
        """The same rows if `share` (0..1) of them collided, on every rank and owner alike. 0 is the stale exchange,
        1 the synchronous one."""
        return replace(
            self,
            asked_late=share * self.asked,
            asked_urgent=share * self.asked,
            served_late=share * self.served,
            served_urgent=share * self.served,
            owned_urgent=share * self.owned,
        )

    def as_if_followed(self) -> RowTraffic:
        """The last batch of the data, as if one like it came after it: as much is urgent as is late."""
        late = self.asked_late.sum() / max(self.asked.sum(), 1.0)
        return replace(
            self, asked_urgent=self.asked_late, served_urgent=self.served_late, owned_urgent=late * self.owned
        )


@dataclass(frozen=True, eq=False)
class TouchedRows:
    """Rows that one global batch touches on any rank."""

    packed: tuple[np.ndarray, ...]
    """One bitmap a table, packed eight rows a byte."""
    factors: tuple[int, ...]
    """Sampling factor k of each table."""
    distinct: float
    """Distinct rows of all tables."""

    def bitmap(self, table: int, rows: int) -> np.ndarray:
        """bool (rows,): which rows of a table are touched (and in the sample)."""
        return np.unpackbits(self.packed[table], count=rows).view(bool)

    def collision_share(self, before: TouchedRows) -> float:
        """Share of these rows that `before` touches too, 0..1; 0 when there are none. Both must be of one counter."""
        shared = sum(
            k * int(np.bitwise_count(mine & other).sum())
            for mine, other, k in zip(self.packed, before.packed, self.factors, strict=True)
        )
        return shared / self.distinct if self.distinct else 0.0


class RowCounter:
    """Counts rows of a data set's global batches; keeps what it counted, since arms share global batches."""

    def __init__(self, dataset: PreparedDataset, global_batch: int, max_uih: int, most_ids: int = MOST_IDS) -> None:
        self._dataset = dataset
        self._global_batch = global_batch
        self._max_uih = max_uih
        self._rows = tuple(feature.vocabulary for feature in dataset.manifest.features)
        # One factor for all batches, so that their samples hold the same rows and can be compared.
        events = float(dataset.uih_lengths(np.arange(len(dataset)), max_uih).mean()) * global_batch
        k = 1 << max(0, int(np.ceil(np.log2(max(events, 1.0) / most_ids))))
        self._factors = tuple(k if rows > ALWAYS_COUNTED else 1 for rows in self._rows)
        self._key = (dataset.manifest.fingerprint, global_batch, max_uih, k)

    def touched(self, t: int) -> TouchedRows | None:
        """Rows of global batch t; None where the data set has no such batch."""
        if not 0 <= t < self._dataset.global_batches(self._global_batch):
            return None
        found: TouchedRows = _remember(_TOUCHED, (*self._key, t), lambda: self._count_touched(t))
        return found

    def traffic(self, t: int, rank_S: np.ndarray, world: int) -> RowTraffic:
        """What each rank asks for and each owner serves in global batch t, dealt to ranks by `rank_S`, int (S,).

        Owners are by a hash of the row, so popular rows weigh on some owner, but runs of ids on none.

        Raises:
            InputError: the data set has no batch t.
        """
        key = (*self._key, t, world, rank_S.tobytes())
        found: RowTraffic = _remember(_TRAFFIC, key, lambda: self._count_traffic(t, rank_S, world))
        return found

    def _count_traffic(self, t: int, rank_S: np.ndarray, world: int) -> RowTraffic:
        requests_S = self._dataset.global_rows(t, self._global_batch)
        touched, before, after = self.touched(t), self.touched(t - 1), self.touched(t + 1)
        assert touched is not None
        total = {name: np.zeros(world) for name in RowTraffic.__dataclass_fields__}
        for table, (rows, k) in enumerate(zip(self._rows, self._factors, strict=True)):
            late, urgent = _bitmap(before, table, rows), _bitmap(after, table, rows)
            owned = np.flatnonzero(touched.bitmap(table, rows))
            total["owned"] += k * np.bincount(_owner(owned, table, world), minlength=world)
            owned = owned[urgent[owned]]
            total["owned_urgent"] += k * np.bincount(_owner(owned, table, world), minlength=world)
            scratch = np.zeros(rows, dtype=bool)
            for rank in range(world):
                mine = _distinct(self._ids(table, requests_S[rank_S == rank], k), scratch)
                for name, chosen in (("", mine), ("_late", mine[late[mine]]), ("_urgent", mine[urgent[mine]])):
                    total[f"asked{name}"][rank] += k * chosen.size
                    total[f"served{name}"] += k * np.bincount(_owner(chosen, table, world), minlength=world)
        traffic = RowTraffic(**total)
        return traffic if after is not None else traffic.as_if_followed()

    def _count_touched(self, t: int) -> TouchedRows:
        requests_S = self._dataset.global_rows(t, self._global_batch)
        packed, distinct = [], 0.0
        for table, (rows, k) in enumerate(zip(self._rows, self._factors, strict=True)):
            bitmap = np.zeros(rows, dtype=bool)
            bitmap[self._ids(table, requests_S, k)] = True
            packed.append(np.packbits(bitmap))
            distinct += k * int(np.count_nonzero(bitmap))
        return TouchedRows(tuple(packed), self._factors, distinct)

    def _ids(self, table: int, requests: np.ndarray, k: int) -> np.ndarray:
        """Ids that `requests` look up in a table, histories then candidates, int32; of the sample, when k > 1."""
        feature = self._dataset.manifest.features[table]
        end_S = self._dataset.uih_end[requests]
        ranges = zip((end_S - self._dataset.uih_lengths(requests, self._max_uih)).tolist(), end_S.tolist(), strict=True)
        column = self._dataset.event_feature(feature.name)
        parts = [column[:0], *(column[begin:end] for begin, end in ranges)]
        if feature.of_candidate:
            offsets = self._dataset.candidate_offsets
            ranges = zip(offsets[requests].tolist(), offsets[requests + 1].tolist(), strict=True)
            column = self._dataset.candidate_feature(feature.name)
            parts += [column[begin:end] for begin, end in ranges]
        ids = np.concatenate(parts)
        return ids if k == 1 else ids[_hash(ids, _SAMPLE_HASH) % np.uint32(k) == 0]


_TOUCHED: OrderedDict[Hashable, Any] = OrderedDict()
_TRAFFIC: OrderedDict[Hashable, Any] = OrderedDict()


def _remember(cache: OrderedDict[Hashable, Any], key: Hashable, count: Callable[[], Any]) -> Any:
    """The cached value of `key`, or a new one; the least recently used goes when there are too many."""
    if key not in cache:
        cache[key] = count()
        while len(cache) > _CACHED_BATCHES:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


def _bitmap(touched: TouchedRows | None, table: int, rows: int) -> np.ndarray:
    return np.zeros(rows, dtype=bool) if touched is None else touched.bitmap(table, rows)


def _distinct(ids: np.ndarray, scratch: np.ndarray) -> np.ndarray:
    """Distinct `ids`, ascending. `scratch`: bool (table rows,), all False, and left so. It saves clearing a bitmap for
    every rank; sorting is faster only where the table is far larger than what is looked up."""
    if scratch.size > _SCAN_ROWS_AN_ID * ids.size:
        return distinct_rows(ids, scratch.size)
    scratch[ids] = True
    rows = np.flatnonzero(scratch)
    scratch[rows] = False
    return rows


def _owner(rows: np.ndarray, table: int, world: int) -> np.ndarray:
    """Rank that owns each row, uint32."""
    owner: np.ndarray = (_hash(rows, _OWNER_HASH) + np.uint32(table)) % np.uint32(world)
    return owner


def _hash(rows: np.ndarray, multiplier: np.uint32) -> np.ndarray:
    mixed: np.ndarray = (rows.astype(np.uint32) * multiplier) >> np.uint32(12)
    return mixed
