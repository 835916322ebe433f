"""Which embedding rows two consecutive global batches share (paper, "Definitions" and Fig. 3). Pure NumPy.

A row of step t+1 *collides* when step t touches it on any rank: t updates it, t+1 reads it. All other rows of t+1 are
*exclusive*: their lookup and exchange may go ahead while t still computes. A row is a row of one table; where there are
several tables, number their rows one table after another.

Two rates are in use, and a figure must say which it shows:
  global    distinct rows of t+1, over all ranks, that t touches  /  distinct rows of t+1
  rank r    distinct rows of t+1 on rank r that t touches on any rank  /  distinct rows of t+1 on rank r
The global rate does not depend on how samples are dealt to ranks. A rank's rate is what its share of the exchange
depends on; it is the higher one, because popular rows count once globally but once on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# N rows touched (with repeats), D distinct rows, R ranks

_BITMAP_BYTES_A_ROW = 16
"""A bitmap over all rows beats sorting when it is not much larger than what is sorted."""


def distinct_rows(rows_N: np.ndarray, table_rows: int) -> np.ndarray:
    """Distinct rows, ascending, int64 (D,).

    Args:
        rows_N: integer rows 0..table_rows-1 in any order and number.
        table_rows: rows of all tables together.
    """
    if table_rows <= _BITMAP_BYTES_A_ROW * rows_N.size:
        touched = np.zeros(table_rows, dtype=bool)
        touched[rows_N] = True
        return np.flatnonzero(touched)
    return np.unique(rows_N).astype(np.int64)


def collision_mask(next_D: np.ndarray, current_D: np.ndarray) -> np.ndarray:
    """Which rows of `next_D` (step t+1) are also in `current_D` (step t), bool of `next_D`'s shape.

    Both ascending and distinct, as `distinct_rows` gives them.
    """
    if not current_D.size:
        return np.zeros(next_D.size, dtype=bool)
    place_D = np.minimum(np.searchsorted(current_D, next_D), current_D.size - 1)
    mask: np.ndarray = current_D[place_D] == next_D
    return mask


def collision_share(next_D: np.ndarray, current_D: np.ndarray) -> float:
    """Global collision rate, 0..1: share of the rows of t+1 that t touches; 0 when t+1 touches none.

    Args:
        next_D: distinct rows of t+1 over all ranks, ascending.
        current_D: distinct rows of t over all ranks, ascending.
    """
    return float(collision_mask(next_D, current_D).mean()) if next_D.size else 0.0


def rank_collision_shares(next_of_rank: Sequence[np.ndarray], current_D: np.ndarray) -> np.ndarray:
    """Each rank's collision rate, float64 (R,) in 0..1.

    Args:
        next_of_rank: distinct rows of t+1 of each rank, ascending.
        current_D: distinct rows of t over *all* ranks, ascending: a row's owner serves them all.
    """
    return np.array([collision_share(next_D, current_D) for next_D in next_of_rank])
