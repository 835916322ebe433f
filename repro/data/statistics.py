"""What a prepared data set is like: lengths, popularity, candidates, collisions. Aggregates only, no ids of anyone.

Everything is measured on the prepared set as the reader delivers it, never taken from what a generator was asked for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from repro.data.dataset import PreparedDataset
from repro.embedding.collision import collision_share, distinct_rows, rank_collision_shares
from repro.errors import InputError

# R requests, N events, V ids of a feature, G requests of a global batch, Q quantiles

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
TOP_SHARES = (0.001, 0.01, 0.1)
POINTS_OF_CURVE = 200
_CHUNK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and quantiles (at `QUANTILES`) of a quantity."""

    mean: float
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, values: np.ndarray) -> Spread:
        """Of at least one value."""
        return cls(mean=float(values.mean()), quantiles=tuple(np.quantile(values, QUANTILES).tolist()))

    def at(self, quantile: float) -> float:
        """The value at one of `QUANTILES`."""
        return self.quantiles[QUANTILES.index(quantile)]


@dataclass(frozen=True, kw_only=True)
class Popularity:
    """How events spread over the ids of one feature."""

    feature: str
    vocabulary: int
    distinct: int
    """Ids that occur."""
    gini: float
    """0: all ids that occur do so equally often; towards 1: few have nearly all events."""
    top_shares: dict[str, float]
    """Share of ids that occur, most popular first (`0.01` is one in a hundred) -> share of events."""
    ranks: tuple[int, ...]
    """Ranks (1: the most popular) of a few points of the popularity curve."""
    counts: tuple[int, ...]
    """Events of the id of each of `ranks`."""


@dataclass(frozen=True, kw_only=True)
class Collision:
    """Collision between consecutive global batches; see `repro.embedding.collision` for the two definitions."""

    global_batch: int
    """Requests."""
    ranks: int
    max_uih: int
    global_pct: tuple[float, ...]
    """Of each pair of consecutive batches measured, percent."""
    rank_pct: tuple[float, ...]
    """Mean over ranks, percent; request i is on rank i mod ranks."""
    distinct_rows: float
    """Mean distinct rows a global batch touches."""


@dataclass(frozen=True, kw_only=True)
class DatasetStatistics:
    """The statistics of one prepared data set."""

    name: str
    fingerprint: str
    users: int
    events: int
    requests: int
    labels: int
    positive_pct: float
    uih_length: Spread
    """Events of a request's history, uncapped."""
    requests_a_user: Spread
    """Of users with a request."""
    activity: float
    """Slope of ln(a user's requests) against ln(their mean history): 1, twice the history comes twice as often."""
    candidates: Spread
    candidate_counts: tuple[int, ...]
    """Requests by number of candidates: 0, 1, 2, ..."""
    popularity: tuple[Popularity, ...]
    """One a feature."""
    collision: Collision | None
    """None where the data set holds fewer than two global batches of that size."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @property
    def item(self) -> Popularity:
        """Popularity of items."""
        return next(popularity for popularity in self.popularity if popularity.feature == "item")


def from_dict(raw: dict[str, Any]) -> DatasetStatistics:
    """Inverse of `DatasetStatistics.to_dict`, also after JSON.

    Raises:
        InputError: fields are missing or unknown.
    """
    try:
        values = {name: _tuples(value) for name, value in raw.items()}
        for name in ("uih_length", "requests_a_user", "candidates"):
            values[name] = Spread(**values[name])
        values["popularity"] = tuple(Popularity(**one) for one in values["popularity"])
        if values["collision"] is not None:
            values["collision"] = Collision(**values["collision"])
        return DatasetStatistics(**values)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"not the statistics of a data set ({error}); run `repro describe` again") from None


def _tuples(value: Any) -> Any:
    """JSON has lists where these classes have tuples."""
    if isinstance(value, dict):
        return {name: _tuples(one) for name, one in value.items()}
    return tuple(_tuples(one) for one in value) if isinstance(value, (list, tuple)) else value


def statistics(
    dataset: PreparedDataset, *, ranks: int = 8, batch: int = 16, max_uih: int = 21_000, pairs: int = 8
) -> DatasetStatistics:
    """Measure `dataset`.

    Args:
        ranks: ranks a global batch is dealt to, for collisions.
        batch: requests a rank.
        max_uih: the reader's cap, for collisions; lengths are uncapped.
        pairs: most pairs of consecutive global batches to measure, spread over the data set.

    Raises:
        InputError: an argument below 1.
    """
    for name, value in (("ranks", ranks), ("batch", batch), ("max_uih", max_uih), ("pairs", pairs)):
        if value < 1:
            raise InputError(f"{name}: must be >= 1, got {value}")
    manifest = dataset.manifest
    length_R = dataset.uih_end - dataset.uih_begin
    count_R = np.diff(dataset.candidate_offsets)
    _, user_R, requests_U = np.unique(dataset.request_user, return_inverse=True, return_counts=True)
    return DatasetStatistics(
        name=manifest.name,
        fingerprint=manifest.fingerprint,
        users=manifest.users,
        events=manifest.events,
        requests=len(dataset),
        labels=manifest.labels,
        positive_pct=100.0 * manifest.positives / manifest.labels,
        uih_length=Spread.of(length_R),
        requests_a_user=Spread.of(requests_U),
        activity=_activity(requests_U, np.bincount(user_R, weights=length_R) / requests_U),
        candidates=Spread.of(count_R),
        candidate_counts=tuple(np.bincount(count_R).tolist()),
        popularity=tuple(popularity(f.name, dataset.event_feature(f.name), f.vocabulary) for f in manifest.features),
        collision=collision(dataset, ranks=ranks, batch=batch, max_uih=max_uih, pairs=pairs),
    )


def popularity(feature: str, ids_N: np.ndarray, vocabulary: int) -> Popularity:
    """Popularity of the ids 0..vocabulary-1 in `ids_N`, integer (N,), memory-mapped or not."""
    count_V = np.zeros(vocabulary, dtype=np.int64)
    for begin in range(0, ids_N.size, _CHUNK):
        count_V += np.bincount(ids_N[begin : begin + _CHUNK], minlength=vocabulary)
    count_D = np.sort(count_V[count_V > 0])[::-1]
    before_D = np.cumsum(count_D)
    rank = np.unique(np.geomspace(1, count_D.size, POINTS_OF_CURVE).round().astype(np.int64))
    return Popularity(
        feature=feature,
        vocabulary=vocabulary,
        distinct=count_D.size,
        gini=gini(count_D),
        top_shares={
            str(share): float(before_D[max(1, round(share * count_D.size)) - 1] / before_D[-1]) for share in TOP_SHARES
        },
        ranks=tuple(rank.tolist()),
        counts=tuple(count_D[rank - 1].tolist()),
    )


def gini(count_D: np.ndarray) -> float:
    """Gini coefficient of positive counts, in descending order."""
    size = count_D.size
    place_D = np.arange(size, 0, -1)  # the least popular has place 1
    return float(2.0 * (place_D * count_D).sum() / (size * count_D.sum()) - (size + 1) / size)


def collision(dataset: PreparedDataset, *, ranks: int, batch: int, max_uih: int, pairs: int) -> Collision | None:
    """Measure up to `pairs` pairs of consecutive global batches; None where there are not two batches."""
    global_batch = ranks * batch
    last = dataset.global_batches(global_batch) - 2
    if last < 0:
        return None
    global_pct, rank_pct, sizes = [], [], []
    for t in np.unique(np.linspace(0, last, min(pairs, last + 1)).round().astype(int)).tolist():
        current = _all_rows(dataset, dataset.global_rows(t, global_batch), max_uih)
        rows_G = dataset.global_rows(t + 1, global_batch)
        next_of_rank = [_all_rows(dataset, rows_G[rank::ranks], max_uih) for rank in range(ranks)]
        following = distinct_rows(np.concatenate(next_of_rank), table_rows(dataset))
        global_pct.append(100.0 * collision_share(following, current))
        rank_pct.append(100.0 * float(rank_collision_shares(next_of_rank, current).mean()))
        sizes.append(following.size)
    return Collision(
        global_batch=global_batch,
        ranks=ranks,
        max_uih=max_uih,
        global_pct=tuple(global_pct),
        rank_pct=tuple(rank_pct),
        distinct_rows=float(np.mean(sizes)),
    )


def table_rows(dataset: PreparedDataset) -> int:
    """Rows of all embedding tables together: one table a feature."""
    return sum(feature.vocabulary for feature in dataset.manifest.features)


def _all_rows(dataset: PreparedDataset, rows: np.ndarray, max_uih: int) -> np.ndarray:
    """Distinct embedding rows that requests `rows` look up, histories and candidates alike; tables are numbered one
    after another in the manifest's order. int64, ascending."""
    end_R = dataset.uih_end[rows]
    histories = _joined(end_R - dataset.uih_lengths(rows, max_uih), end_R)
    candidates = list(
        zip(dataset.candidate_offsets[rows].tolist(), dataset.candidate_offsets[rows + 1].tolist(), strict=True)
    )
    found, offset = [], 0
    for feature in dataset.manifest.features:
        column = dataset.event_feature(feature.name)
        ids = [column[begin:end] for begin, end in histories]
        if feature.of_candidate:
            column = dataset.candidate_feature(feature.name)
            ids += [column[begin:end] for begin, end in candidates]
        found.append(distinct_rows(np.concatenate(ids), feature.vocabulary) + offset)
        offset += feature.vocabulary
    return np.concatenate(found)


def _joined(begin_R: np.ndarray, end_R: np.ndarray) -> list[tuple[int, int]]:
    """The union of ranges as disjoint ranges: a user's requests of one batch read nearly the same history."""
    order_R = np.argsort(begin_R, kind="stable")
    begin_R, end_R = begin_R[order_R], end_R[order_R]
    reach_R = np.maximum.accumulate(end_R)
    opens_R = np.concatenate([[True], begin_R[1:] > reach_R[:-1]])
    last_R = np.append(np.flatnonzero(opens_R)[1:] - 1, begin_R.size - 1)
    return list(zip(begin_R[opens_R].tolist(), reach_R[last_R].tolist(), strict=True))


def _activity(requests_U: np.ndarray, length_U: np.ndarray) -> float:
    if requests_U.size < 2:
        return 0.0
    x_U = np.log(length_U) - np.log(length_U).mean()
    variance = float((x_U**2).sum())
    return float((x_U * np.log(requests_U)).sum() / variance) if variance > 0 else 0.0
