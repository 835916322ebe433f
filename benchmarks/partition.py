"""Speed and quality of every partition, as ratios, in one run on one core.

Command    python -m benchmarks.partition
Speed      32,768 samples over 256 ranks; time / that of one stable np.argsort of the lengths, best of several
Quality    cost of the busiest rank / mean, and percent above the lower bound of any such partition, by batch size

Lengths are lognormal and capped at 21,000, as in long-history training; costs are the balancer's own model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

import numpy as np

from repro.balance.bounds import Quality, quality
from repro.balance.cost import SampleCost
from repro.balance.partition import FREE_COUNTS, assign
from repro.config import BalanceConfig, Partition

PARTITIONS: tuple[Partition, ...] = get_args(Partition)
BATCHES = (16, 32, 128, 512)
SPEED_WORLD, SPEED_BATCH = 256, 128


def skewed_lengths(samples: int, *, cap: int = 21_000, seed: int = 1) -> np.ndarray:
    """UIH lengths of median 665 and a long tail, int64 (samples,)."""
    lengths = np.random.default_rng(seed).lognormal(6.5, 1.3, samples)
    return np.minimum(lengths, cap).astype(np.int64)


def judged(partition: Partition, lengths_S: np.ndarray, world: int, balance: BalanceConfig | None = None) -> Quality:
    """Deal `lengths_S` and judge it by modelled cost."""
    cost_S = SampleCost().of(lengths_S, np.zeros_like(lengths_S))
    rank_S = assign(partition, lengths_S, world, balance=balance)
    return quality(rank_S, cost_S, lengths_S, world, equal_counts=partition not in FREE_COUNTS)


def best_seconds(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Shortest time of each, measured in turns so that all see the same disturbances."""
    best = dict.fromkeys(work, np.inf)
    for _ in range(repeats):
        for name, call in work.items():
            began = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def relative_times(repeats: int = 20, partitions: tuple[Partition, ...] = PARTITIONS) -> tuple[dict[str, float], float]:
    """Time of each partition / that of one stable argsort of the lengths, and the latter in seconds."""
    lengths_S = skewed_lengths(SPEED_WORLD * SPEED_BATCH)

    def deal(partition: Partition) -> Callable[[], object]:
        return lambda: assign(partition, lengths_S, SPEED_WORLD)

    work: dict[str, Callable[[], object]] = {"argsort": lambda: np.argsort(lengths_S, kind="stable")}
    seconds = best_seconds(work | {name: deal(name) for name in partitions}, repeats)
    return {name: seconds[name] / seconds["argsort"] for name in partitions}, seconds["argsort"]


def main() -> None:
    """Print both tables."""
    ratios, argsort = relative_times()
    print(f"Speed, {SPEED_WORLD * SPEED_BATCH:,} samples over {SPEED_WORLD} ranks, as multiples of one stable argsort")
    print(f"(np.argsort: {1e3 * argsort:.2f} ms here)\n")
    for name, ratio in ratios.items():
        print(f"  {name:16s}{ratio:8.2f} x")
    print(f"  karmarkar_karp / fbs_cost: {ratios['karmarkar_karp'] / ratios['fbs_cost']:.1f} x")
    batch_order = BalanceConfig(vbs_order="batch")
    rows: list[tuple[str, Partition, BalanceConfig | None]] = [(name, name, None) for name in PARTITIONS]
    rows.insert(3, ("vbs, batch order", "vbs", batch_order))
    for world in (64, 256):
        print(f"\nQuality, {world} ranks: max / mean of modelled cost (percent above lower bound; tokens max / mean)\n")
        print("  batch           " + "".join(f"{batch:>28}" for batch in BATCHES))
        for label, name, balance in rows:
            cells = [judged(name, skewed_lengths(world * batch), world, balance) for batch in BATCHES]
            shown = [
                f"{cell.max_over_mean:.5f} ({cell.gap_pct:.2f} %; {cell.tokens_max_over_mean:.2f})" for cell in cells
            ]
            print(f"  {label:16s}" + "".join(f"{text:>28}" for text in shown))


if __name__ == "__main__":
    main()
