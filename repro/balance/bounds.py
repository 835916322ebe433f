"""How good a partition is, and how good any could be.

Example: costs [9, 1, 1, 1], two ranks. No partition beats a maximum of 9, and none with equal counts beats 10, though
the mean is 6: the distance from optimal is counted from the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# S samples of a global batch, W ranks


def lower_bound(cost_S: np.ndarray, world: int, *, equal_counts: bool) -> float:
    """No partition has a smaller maximum over ranks.

    The largest of: the mean; and for each k, the k + 1 cheapest of the k x W + 1 dearest samples, since some rank holds
    k + 1 of these (k = 0: the largest single sample). With equal counts that rank also holds as many more samples as
    it takes to fill it, at least the cheapest ones.

    Args:
        cost_S: cost of each sample, >= 0, (S,).
        equal_counts: counts of samples may differ by one at most.
    """
    samples = cost_S.size
    if samples == 0:
        return 0.0
    ascending_S = np.sort(cost_S.astype(np.float64))
    below = np.concatenate([[0.0], np.cumsum(ascending_S)])
    held = np.arange(1, (samples - 1) // world + 2)
    dearest = (held - 1) * world + 1
    start = samples - dearest
    fill = np.maximum(samples // world - held, 0) if equal_counts else np.zeros_like(held)
    pigeonhole = below[start + held] - below[start] + below[np.minimum(fill, start)]
    return float(max(below[-1] / world, pigeonhole.max()))


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Imbalance of one partition of one global batch."""

    max_over_mean: float
    """Cost of the busiest rank / mean over ranks."""
    bound_over_mean: float
    """The smallest `max_over_mean` that could be proven reachable at best."""
    tokens_max_over_mean: float
    """The same ratio of tokens, which is what memory and embedding traffic follow."""
    fewest: int
    """Samples of the rank with the fewest."""
    most: int
    """Samples of the rank with the most."""

    @property
    def gap_pct(self) -> float:
        """Distance from optimal, at most: percent above the lower bound."""
        return 100 * (self.max_over_mean / self.bound_over_mean - 1)


def quality(rank_S: np.ndarray, cost_S: np.ndarray, tokens_S: np.ndarray, world: int, *, equal_counts: bool) -> Quality:
    """Judge a partition by given costs.

    Args:
        rank_S: rank of each sample, integer (S,).
        cost_S: cost of each sample, >= 0, (S,).
        tokens_S: tokens of each sample, (S,).
        equal_counts: whether the bound is that of partitions with equal counts.
    """
    cost_W = np.bincount(rank_S, weights=cost_S, minlength=world)
    tokens_W = np.bincount(rank_S, weights=tokens_S, minlength=world)
    counts_W = np.bincount(rank_S, minlength=world)
    mean = cost_W.mean()
    return Quality(
        max_over_mean=float(cost_W.max() / mean) if mean > 0 else 1.0,
        bound_over_mean=lower_bound(cost_S, world, equal_counts=equal_counts) / mean if mean > 0 else 1.0,
        tokens_max_over_mean=float(tokens_W.max() / tokens_W.mean()) if tokens_W.any() else 1.0,
        fewest=int(counts_W.min()),
        most=int(counts_W.max()),
    )
