"""The strongest published rival: Karmarkar-Karp differencing with equal counts, over a heap of Python objects.

NVIDIA's recsys-examples and verl balance this way, in plain Python; so does this, as the peer to compare with.
`repro.balance.by_cost` runs the same merges as vector operations.
"""

from __future__ import annotations

import heapq

import numpy as np

# S samples of a global batch, W ranks


def karmarkar_karp(cost_S: np.ndarray, world: int) -> np.ndarray:
    """Largest differencing method with equal sample counts (differing by one where W does not divide S).

    Samples in descending cost are cut into groups of W, each a partial partition with one sample a rank. The two
    partial partitions with the widest spread are merged, heaviest part with lightest, until one is left.

    Args:
        cost_S: cost of each sample, (S,), >= 0.

    Returns:
        Rank of each sample, int64 (S,).

    Source: N. Karmarkar, R. Karp, "The differencing method of set partitioning" (1982).
    """
    costs = cost_S.tolist()
    order = sorted(range(len(costs)), key=lambda sample: -costs[sample])
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for serial, start in enumerate(range(0, len(order), world)):
        parts = [(costs[sample], [sample]) for sample in order[start : start + world]]
        parts += [(0.0, [])] * (world - len(parts))
        heap.append((parts[-1][0] - parts[0][0], serial, parts))
    heapq.heapify(heap)
    serial = len(heap)
    while len(heap) > 1:
        left, right = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = [(a + b, held + more) for (a, held), (b, more) in zip(left, reversed(right), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], serial, merged))
        serial += 1
    rank_S = np.empty(len(costs), dtype=np.int64)
    for rank, (_, samples) in enumerate(heap[0][2] if heap else []):
        rank_S[samples] = rank
    return rank_S
