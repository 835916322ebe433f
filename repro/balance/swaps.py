"""Lowers the heaviest ranks by swapping samples with lighter ones, many pairs of ranks at a time.

Differencing (Karmarkar-Karp) and dealing in rounds give each rank one sample of each round. Where one history outweighs
a rank's fair share, its rank should get the shortest samples of *all* rounds instead, which swaps find.
"""

from __future__ import annotations

import numpy as np

# S samples of a global batch, W ranks, K places a rank, H heavy ranks, C places of each looked at in one pass

_PLACES = 24
_PASSES = 256
_STALLED_PASSES = 16
_LEAST_GAIN = 1e-7


def lower_maximum(
    rank_S: np.ndarray,
    weight_S: np.ndarray,
    world: int,
    target: float,
    *,
    equal_counts: bool,
    other_S: np.ndarray | None = None,
    other_limit: float = np.inf,
    passes: int = _PASSES,
) -> np.ndarray:
    """Swap until no rank weighs more than `target` or nothing helps any more. Deterministic.

    A pass pairs the heaviest rank with the lightest, the second heaviest with the second lightest, and so on, and takes
    in each pair the swap that leaves the smaller maximum. Where that is stuck, other lighter ranks are tried.

    Args:
        rank_S: rank of each sample to start from, int64 (S,); not changed.
        weight_S: what is to be levelled, float64 (S,), >= 0.
        equal_counts: swap only; otherwise a sample may also move alone.
        other_S: a second weight, float64 (S,), that no swap may lift above `other_limit` on any rank.
        passes: at most so many.

    Returns:
        Rank of each sample, int64 (S,); its maximum weight is never above that of `rank_S`.
    """
    if world == 1 or np.bincount(rank_S, weights=weight_S, minlength=world).max() <= target:
        return rank_S
    counts_W = np.bincount(rank_S, minlength=world)
    sample_WK = _places(rank_S, counts_W, int(counts_W.max()) + (0 if equal_counts else 1))
    table = _Table(sample_WK, weight_S, other_S, other_limit, movable=not equal_counts)
    stalled = shift = 0
    for turn in range(passes):
        load_W = table.loads()
        heaviest = load_W.max()
        if heaviest <= target or stalled > _STALLED_PASSES:
            break
        by_load_W = np.argsort(load_W, kind="stable")
        heavy = min(int(np.count_nonzero(load_W > target)), world // 2)
        heavy_H = by_load_W[::-1][:heavy]
        lighter = by_load_W[: world - heavy]
        light_H = lighter[(np.arange(heavy) + shift) % lighter.size]
        helped_H = table.swap(heavy_H, light_H, load_W[heavy_H] - load_W[light_H], turn, _LEAST_GAIN * heaviest)
        if helped_H[0]:
            stalled = 0
        else:
            stalled += 1
            shift += heavy
    return table.ranks(rank_S.size)


def _places(rank_S: np.ndarray, counts_W: np.ndarray, width: int) -> np.ndarray:
    """Samples of each rank in one row, int64 (W, K); S where a place is empty."""
    order_S = np.argsort(rank_S, kind="stable")
    sorted_S = rank_S[order_S]
    place_S = np.arange(rank_S.size) - (np.cumsum(counts_W) - counts_W)[sorted_S]
    sample_WK = np.full((counts_W.size, width), rank_S.size, dtype=np.int64)
    sample_WK[sorted_S, place_S] = order_S
    return sample_WK


class _Table:
    def __init__(
        self,
        sample_WK: np.ndarray,
        weight_S: np.ndarray,
        other_S: np.ndarray | None,
        other_limit: float,
        *,
        movable: bool,
    ) -> None:
        self._sample_WK = sample_WK
        self._weight_WK = np.append(weight_S, 0.0)[sample_WK]
        self._other_WK = None if other_S is None else np.append(other_S, 0.0)[sample_WK]
        self._other_limit = other_limit
        self._empty_WK = sample_WK == weight_S.size if not movable else np.zeros((0, 0), dtype=bool)

    def loads(self) -> np.ndarray:
        load_W: np.ndarray = self._weight_WK.sum(axis=1)
        return load_W

    def swap(self, heavy_H: np.ndarray, light_H: np.ndarray, gap_H: np.ndarray, turn: int, least: float) -> np.ndarray:
        """Make the best swap of each pair that gains at least `least`; which pairs did, bool (H,)."""
        width = self._sample_WK.shape[1]
        seen = min(width, _PLACES)
        place_C = (np.arange(seen) * width // seen + turn) % width
        from_HC, to_HC = np.ix_(heavy_H, place_C), np.ix_(light_H, place_C)
        moved_HCC = self._weight_WK[from_HC][:, :, None] - self._weight_WK[to_HC][:, None, :]
        gain_HCC = np.minimum(moved_HCC, gap_H[:, None, None] - moved_HCC)
        if self._empty_WK.any():
            gain_HCC[self._empty_WK[from_HC][:, :, None] | self._empty_WK[to_HC][:, None, :]] = -np.inf
        if self._other_WK is not None:
            other_HCC = self._other_WK[from_HC][:, :, None] - self._other_WK[to_HC][:, None, :]
            other_W = self._other_WK.sum(axis=1)
            room_to_H = self._other_limit - other_W[light_H]
            room_from_H = self._other_limit - other_W[heavy_H]
            gain_HCC[(other_HCC > room_to_H[:, None, None]) | (-other_HCC > room_from_H[:, None, None])] = -np.inf
        best_H = gain_HCC.reshape(heavy_H.size, -1).argmax(axis=1)
        place_from_H, place_to_H = np.divmod(best_H, seen)
        helped_H: np.ndarray = gain_HCC[np.arange(heavy_H.size), place_from_H, place_to_H] > least
        source = heavy_H[helped_H], place_C[place_from_H[helped_H]]
        target = light_H[helped_H], place_C[place_to_H[helped_H]]
        for table in (self._sample_WK, self._weight_WK, self._other_WK):
            if table is not None:
                table[source], table[target] = table[target], table[source]
        if self._empty_WK.size:
            self._empty_WK[source], self._empty_WK[target] = self._empty_WK[target], self._empty_WK[source]
        return helped_H

    def ranks(self, samples: int) -> np.ndarray:
        rank = np.empty(samples + 1, dtype=np.int64)
        rank[self._sample_WK] = np.arange(self._sample_WK.shape[0])[:, None]
        return rank[:samples]
