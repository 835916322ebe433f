"""FBS, fixed batch size: the paper's deal in zig-zag."""

from __future__ import annotations

import numpy as np

from repro.balance.order import descending

# S samples of a global batch, W ranks


def fbs(lengths_S: np.ndarray, world: int) -> np.ndarray:
    """Longest first, dealt in zig-zag; rank i takes positions i, 2n-1-i, 2n+i, 4n-1-i, ...

    Equal lengths keep their global-batch order, so the result is deterministic. Every rank gets the same number
    of samples when world divides S, else counts differ by one. Source: paper, technique 1 (section "sequence load
    balancing"), https://arxiv.org/abs/2604.24073.

    Args:
        lengths_S: UIH lengths, integer (S,).

    Returns:
        Rank of each sample, int64 (S,).
    """
    position_S = np.arange(lengths_S.size, dtype=np.int64) % (2 * world)
    rank_S = np.empty(lengths_S.size, dtype=np.int64)
    rank_S[descending(lengths_S)] = np.where(position_S < world, position_S, 2 * world - 1 - position_S)
    return rank_S
