"""Which rank trains which sample of a global batch: pure functions of lengths and world size.

All take UIH lengths in global-batch order and return, for each sample, its rank. They permute samples within a
global batch and never change which samples form it.

Example: lengths [9, 1, 8, 2], two ranks. `identity` gives [0, 1, 0, 1] (17 events against 3). `fbs` sorts them
to 9, 8, 2, 1 and deals in zig-zag, rank 0, 1, 1, 0: [0, 0, 1, 1] (10 against 10).
"""

from __future__ import annotations

from typing import assert_never

import numpy as np

from repro.config import Partition
from repro.errors import InputError

# S samples of a global batch, W ranks


def assign(partition: Partition, lengths_S: np.ndarray, world: int) -> np.ndarray:
    """Deal a global batch by the named partition.

    Args:
        lengths_S: UIH lengths, integer (S,).
        world: number of ranks.

    Returns:
        Rank of each sample, int64 (S,).

    Raises:
        InputError: world < 1 or lengths not one-dimensional.
    """
    if world < 1:
        raise InputError(f"world: must be >= 1, got {world}")
    if lengths_S.ndim != 1:
        raise InputError(f"lengths: must be one-dimensional, got shape {lengths_S.shape}")
    match partition:
        case "identity":
            return identity(lengths_S, world)
        case "fbs":
            return fbs(lengths_S, world)
    assert_never(partition)


def identity(lengths_S: np.ndarray, world: int) -> np.ndarray:
    """Sample i to rank i mod world: what independent readers would deliver."""
    return np.arange(lengths_S.size, dtype=np.int64) % world


def fbs(lengths_S: np.ndarray, world: int) -> np.ndarray:
    """Fixed batch size: longest first, dealt in zig-zag; rank i takes positions i, 2n-1-i, 2n+i, 4n-1-i, ...

    Equal lengths keep their global-batch order, so the result is deterministic. Every rank gets the same number
    of samples when world divides S, else counts differ by one. Source: paper, technique 1 (section "sequence load
    balancing"), https://arxiv.org/abs/2604.24073.
    """
    order_S = np.argsort(-lengths_S.astype(np.int64), kind="stable")
    position_S = np.arange(lengths_S.size, dtype=np.int64) % (2 * world)
    rank_of_position_S = np.where(position_S < world, position_S, 2 * world - 1 - position_S)
    rank_S = np.empty(lengths_S.size, dtype=np.int64)
    rank_S[order_S] = rank_of_position_S
    return rank_S
