"""Partitions of this project's own, by modelled cost: `fbs_cost` with equal sample counts, `vbs_cost` with free ones.

Both order samples from dearest to cheapest and place them a round at a time, all ranks at once.
"""

from __future__ import annotations

import heapq

import numpy as np

from repro.balance.bounds import lower_bound
from repro.balance.order import descending
from repro.balance.swaps import lower_maximum

# S samples of a global batch, W ranks, B = ceil(S / W) rounds

_CLOSE = 1e-4
"""Relative distance from the lower bound at which a partition counts as optimal."""
_SLACK = 0.01
"""Relative room between the mean cost and the maximum above which tokens are levelled too."""
_TOKEN_PASSES = 16


def fbs_cost(cost_S: np.ndarray, tokens_S: np.ndarray, world: int) -> np.ndarray:
    """Equal sample counts (differing by one where W does not divide S), least maximum cost.

    Differencing (Karmarkar and Karp 1982, in its form with equal counts) with each merge one vector operation over all
    ranks, then swaps until within 1e-4 of the lower bound; so its maximum is never above that of `karmarkar_karp`.
    Where one sample outweighs the mean rank by more than 1 %, ranks have room, and tokens are levelled within it.

    Args:
        cost_S: cost of each sample, float64 (S,), >= 0.
        tokens_S: tokens of each sample, (S,).

    Returns:
        Rank of each sample, int64 (S,).
    """
    rank_S = _differencing(cost_S, world)
    bound = lower_bound(cost_S, world, equal_counts=True)
    rank_S = lower_maximum(rank_S, cost_S, world, bound * (1 + _CLOSE), equal_counts=True)
    return _level_tokens(rank_S, cost_S, tokens_S, world, equal_counts=True)


def vbs_cost(
    cost_S: np.ndarray,
    tokens_S: np.ndarray,
    world: int,
    *,
    token_cap: int | None = None,
    share_W: np.ndarray | None = None,
) -> np.ndarray:
    """Free sample counts, least maximum cost; a rank may stay empty.

    Dearest first: each round gives one sample to every rank that still has room for it, the dearest to the rank with
    the most room (longest-processing-time rule, Graham 1969, a round at a time). Tokens are levelled as in `fbs_cost`,
    unless shares differ.

    Args:
        cost_S: cost of each sample, float64 (S,), >= 0.
        tokens_S: tokens of each sample, (S,).
        token_cap: ranks that could pass it get no more samples while others can take them.
        share_W: share of all cost that each rank should get, float64 (W,), sum 1; equal by default.

    Returns:
        Rank of each sample, int64 (S,).
    """
    order_S = descending(cost_S)
    cost_sorted_S = cost_S[order_S].astype(np.float64)
    tokens_sorted_S = tokens_S[order_S].astype(np.float64)
    largest_left_S = np.maximum.accumulate(tokens_sorted_S[::-1])[::-1]
    share = np.full(world, 1 / world) if share_W is None else share_W
    room_W = share * cost_sorted_S.sum()
    tokens_W = np.zeros(world)
    rank_S = np.empty(order_S.size, dtype=np.int64)
    done = 0
    while done < order_S.size:
        by_room = np.argsort(-room_W, kind="stable")
        if token_cap is not None:
            fits = tokens_W[by_room] + largest_left_S[done] <= token_cap
            by_room = by_room[fits] if fits.any() else by_room
        # A sample that fills its rank exactly must not miss it by a rounding error.
        takes = int(np.count_nonzero(room_W[by_room] >= cost_sorted_S[done] * (1 - 1e-9)))
        given = min(max(takes, 1), order_S.size - done)
        rank = by_room[:given]
        room_W[rank] -= cost_sorted_S[done : done + given]
        tokens_W[rank] += tokens_sorted_S[done : done + given]
        rank_S[order_S[done : done + given]] = rank
        done += given
    return rank_S if share_W is not None else _level_tokens(rank_S, cost_S, tokens_S, world, equal_counts=False)


def _differencing(cost_S: np.ndarray, world: int) -> np.ndarray:
    """A partial partition is W sums in ascending order. Merging two adds the largest of one to the smallest of the
    other, and so on; what is remembered of a merge is only how it reordered the sums, unrolled at the end."""
    if cost_S.size == 0:
        return np.empty(0, dtype=np.int64)
    rounds = -(-cost_S.size // world)
    empty = rounds * world - cost_S.size
    order_S = descending(cost_S)
    sums = list(np.concatenate([cost_S[order_S], np.zeros(empty)]).reshape(rounds, world)[:, ::-1])
    merges: list[tuple[int, int, np.ndarray]] = []
    widest = [(sums[node][0] - sums[node][-1], node) for node in range(rounds)]
    heapq.heapify(widest)
    while len(widest) > 1:
        left, right = heapq.heappop(widest)[1], heapq.heappop(widest)[1]
        added = sums[left] + sums[right][::-1]
        order_W = added.argsort(kind="stable")
        merged = added[order_W]
        heapq.heappush(widest, (merged[0] - merged[-1], len(sums)))
        sums.append(merged)
        merges.append((left, right, order_W))
    rank_of = np.empty((len(sums), world), dtype=np.int64)
    rank_of[-1] = np.arange(world)
    for node in range(len(sums) - 1, rounds - 1, -1):
        left, right, order_W = merges[node - rounds]
        rank_of[left][order_W] = rank_of[node]
        rank_of[right] = rank_of[left][::-1]
    rank_S = np.empty(cost_S.size, dtype=np.int64)
    rank_S[order_S] = rank_of[:rounds, ::-1].reshape(-1)[: cost_S.size]
    return rank_S


def _level_tokens(
    rank_S: np.ndarray, cost_S: np.ndarray, tokens_S: np.ndarray, world: int, *, equal_counts: bool
) -> np.ndarray:
    cost_W = np.bincount(rank_S, weights=cost_S, minlength=world)
    limit = float(cost_W.max())
    if limit <= (1 + _SLACK) * cost_W.mean():
        return rank_S
    tokens = tokens_S.astype(np.float64)
    return lower_maximum(
        rank_S,
        tokens,
        world,
        lower_bound(tokens, world, equal_counts=equal_counts) * (1 + _SLACK),
        equal_counts=equal_counts,
        other_S=cost_S,
        other_limit=limit,
        passes=_TOKEN_PASSES,
    )
