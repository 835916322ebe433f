"""Which rank trains which sample of a global batch: pure functions of lengths, candidate counts and world size.

All return, for each sample in global-batch order, its rank. They permute samples within a global batch and never change
which samples form it.

| partition | counts | balances | source |
| --- | --- | --- | --- |
| `identity` | equal | nothing | what independent readers deliver |
| `fbs` | equal | lengths, zig-zag | paper |
| `vbs` | free | L^alpha, contiguous segments | paper |
| `karmarkar_karp` | equal | modelled cost | recsys-examples, verl |
| `fbs_cost` | equal | modelled cost, then tokens | this project |
| `vbs_cost` | free | modelled cost, then tokens | this project |

Example: lengths [9, 1, 8, 2], two ranks. `identity` gives [0, 1, 0, 1] (17 events against 3). `fbs` sorts them
to 9, 8, 2, 1 and deals in zig-zag, rank 0, 1, 1, 0: [0, 0, 1, 1] (10 against 10).
"""

from __future__ import annotations

from typing import assert_never

import numpy as np

from repro.balance.by_cost import fbs_cost, vbs_cost
from repro.balance.cost import SampleCost
from repro.balance.karmarkar_karp import karmarkar_karp
from repro.balance.memory import require_possible, under_cap
from repro.balance.segments import vbs
from repro.balance.zigzag import fbs
from repro.config import BalanceConfig, Partition
from repro.errors import InputError

# S samples of a global batch, W ranks

FREE_COUNTS: frozenset[Partition] = frozenset({"vbs", "vbs_cost"})
"""Partitions under which ranks may hold different numbers of samples, and none."""


def assign(
    partition: Partition,
    lengths_S: np.ndarray,
    world: int,
    *,
    candidates_S: np.ndarray | None = None,
    balance: BalanceConfig | None = None,
    share_W: np.ndarray | None = None,
) -> np.ndarray:
    """Deal a global batch by the named partition.

    Args:
        lengths_S: UIH lengths, integer (S,).
        world: number of ranks.
        candidates_S: candidates of each sample, integer (S,); none by default.
        balance: exponent, cost coefficients and token cap; defaults of `BalanceConfig`.
        share_W: each rank's share of the work for `vbs` and `vbs_cost` (`repro.balance.autotune`), float (W,), > 0;
            scaled to sum 1. Equal by default; other partitions take none.

    Returns:
        Rank of each sample, int64 (S,).

    Raises:
        InputError: world < 1, ill-shaped arrays, shares that do not fit the partition, or more tokens than the cap.
    """
    settings = balance or BalanceConfig()
    candidates = np.zeros(lengths_S.size, dtype=np.int64) if candidates_S is None else candidates_S
    share = _checked(partition, lengths_S, candidates, world, share_W)
    tokens_S = lengths_S.astype(np.int64) + candidates
    cap = settings.token_cap or None
    if cap is not None:
        require_possible(tokens_S, world, cap)
    cost = SampleCost(attention_length=settings.attention_length)
    match partition:
        case "identity":
            rank_S = identity(lengths_S, world)
        case "fbs":
            rank_S = fbs(lengths_S, world)
        case "vbs":
            batch_order = settings.vbs_order == "batch"
            rank_S = vbs(lengths_S, world, alpha=settings.alpha, batch_order=batch_order, share_W=share)
        case "karmarkar_karp":
            rank_S = karmarkar_karp(cost.of(lengths_S, candidates), world)
        case "fbs_cost":
            rank_S = fbs_cost(cost.of(lengths_S, candidates), tokens_S, world)
        case "vbs_cost":
            rank_S = vbs_cost(cost.of(lengths_S, candidates), tokens_S, world, token_cap=cap, share_W=share)
        case _:
            assert_never(partition)
    if cap is None:
        return rank_S
    keep = partition == "identity"
    return under_cap(rank_S, tokens_S, world, cap, equal_counts=partition not in FREE_COUNTS, keep=keep)


def identity(lengths_S: np.ndarray, world: int) -> np.ndarray:
    """Sample i to rank i mod world: what independent readers would deliver."""
    return np.arange(lengths_S.size, dtype=np.int64) % world


def _checked(
    partition: Partition, lengths_S: np.ndarray, candidates_S: np.ndarray, world: int, share_W: np.ndarray | None
) -> np.ndarray | None:
    if world < 1:
        raise InputError(f"world: must be >= 1, got {world}")
    if lengths_S.ndim != 1:
        raise InputError(f"lengths: must be one-dimensional, got shape {lengths_S.shape}")
    if candidates_S.shape != lengths_S.shape:
        raise InputError(f"candidates: {candidates_S.shape} do not fit lengths {lengths_S.shape}")
    if share_W is None:
        return None
    if partition not in FREE_COUNTS:
        raise InputError(f"shares: {partition} has no shares; use {' or '.join(sorted(FREE_COUNTS))}")
    if share_W.shape != (world,) or not (np.isfinite(share_W).all() and (share_W > 0).all()):
        raise InputError(f"shares: need {world} positive numbers, got {share_W.tolist()}")
    scaled: np.ndarray = share_W / share_W.sum()
    return scaled
