"""VBS, variable batch size: the sequence of samples cut into one contiguous segment a rank, of about equal weight.

The public notes on the paper leave open which sequence is cut. Two are offered. `batch`: the global batch as it comes;
a cut then falls inside a long history's place and leaves up to one long history of imbalance. `dealt`: the batch as FBS
deals it, rank after rank, each longest first; cuts then fall among the short samples that end each rank's run,
and the result is by weight never worse than FBS.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from repro.balance.zigzag import fbs

# S samples of a global batch, W ranks

_TOLERANCE = 1e-6


def vbs(
    lengths_S: np.ndarray,
    world: int,
    *,
    alpha: float,
    batch_order: bool = False,
    share_W: np.ndarray | None = None,
) -> np.ndarray:
    """Weight L^alpha, cut so that the largest segment (over its share) is as small as contiguous segments allow.

    Source: paper, technique 1 (VBS), https://arxiv.org/abs/2604.24073.

    Args:
        lengths_S: UIH lengths, integer (S,).
        alpha: exponent of the weight; attention alone would be 2, all else 1.
        batch_order: cut the global batch in its own order rather than as FBS deals it.
        share_W: share of all weight that each rank should get, float64 (W,), sum 1; equal by default.

    Returns:
        Rank of each sample, int64 (S,). Counts differ by rank, and a rank may stay empty.
    """
    weight_S = lengths_S.astype(np.float64) ** alpha
    if batch_order:
        order_S = np.arange(lengths_S.size)
    else:
        dealt_S = fbs(lengths_S, world)
        order_S = np.lexsort((-lengths_S.astype(np.int64), dealt_S))
    share = np.full(world, 1 / world) if share_W is None else share_W
    rank_S = np.empty(lengths_S.size, dtype=np.int64)
    rank_S[order_S] = np.repeat(np.arange(world), np.diff(_cuts(weight_S[order_S], share)))
    return rank_S


def _cuts(weight_S: np.ndarray, share_W: np.ndarray) -> list[int]:
    """W + 1 ends of segments: bisection over the largest load a unit of share, filling ranks greedily for each try."""
    samples, total = weight_S.size, float(weight_S.sum())
    ends = np.cumsum(weight_S).tolist()

    def fill(load: float) -> list[int] | None:
        cuts = [0]
        for share in share_W.tolist():
            start = cuts[-1]
            before = ends[start - 1] if start else 0.0
            cuts.append(max(bisect_right(ends, before + load * share * (1 + 1e-12)), start))
        return cuts if cuts[-1] == samples else None

    low, high = total, total
    while (cuts := fill(high)) is None:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * low:
        middle = (low + high) / 2
        tried = fill(middle)
        if tried is None:
            low = middle
        else:
            high, cuts = middle, tried
    return cuts
