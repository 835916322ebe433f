"""The paper's Fig. 7 on the device at hand: latency of jagged dispatch and combine against world size.

Command    python -m benchmarks.kernels [--results results]
Writes     results/bench/fig07.json and fig07.svg
Workload   one rank's 128 samples of skewed length (median 665 events, up to 21,000; two id features). Dispatch brings
           the samples into the order of the ranks that will train them; combine brings samples that stand by source
           rank back into batch order.
Compared   eager: a loop over ranks in plain torch; torch: repro.kernels.jagged; fbgemm: FBGEMM's permute operators;
           triton: repro.kernels.triton_jagged, on a GPU only
Expected   eager grows with the world size, the others do not: about 20x at 32 ranks and over 600x at 512 between
           Triton and eager, on H100 (confidence C; another note reads far smaller gaps)
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fbgemm_gpu  # noqa: F401  registers torch.ops.fbgemm
import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.partition import skewed_lengths
from repro.balance.zigzag import fbs
from repro.kernels import jagged

# W ranks, S samples of one rank, T rows of them

WORLDS = (8, 16, 32, 64, 128, 256, 512)
SAMPLES = 128
FEATURES = 2
SECONDS_EACH = 0.5
MOST_REPEATS = 200
OPERATIONS = ("dispatch", "combine")

Call = Callable[[], torch.Tensor]


def calls(world: int, device: torch.device) -> dict[str, dict[str, Call]]:
    """Operation -> implementation -> what to time. All of one operation give the same rows."""
    lengths_G = skewed_lengths(SAMPLES * world)
    rank_S = torch.from_numpy(fbs(lengths_G, world)[::world].copy())
    lengths_S = torch.from_numpy(lengths_G[::world].copy())
    order_S = torch.argsort(rank_S, stable=True)
    back_S = torch.argsort(order_S)
    total = int(lengths_S.sum())
    values_TD = torch.arange(total * FEATURES, dtype=torch.int64).view(total, FEATURES)
    sent_TD, sent_lengths_S = jagged.permute(values_TD, lengths_S, order_S)
    begin_S, begin_sent_S = jagged.begins(lengths_S), jagged.begins(lengths_S)[order_S]
    values_TD, sent_TD, lengths_S, sent_lengths_S, order_S, back_S, rank_S, begin_S, begin_sent_S = (
        tensor.to(device)
        for tensor in (
            values_TD, sent_TD, lengths_S, sent_lengths_S, order_S, back_S, rank_S, begin_S, begin_sent_S
        )
    )  # fmt: skip
    columns_DT = [column.contiguous() for column in values_TD.T]
    sent_columns_DT = [column.contiguous() for column in sent_TD.T]

    def fbgemm(columns: list[torch.Tensor], lengths: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        permute = torch.ops.fbgemm.permute_1D_sparse_data
        index32 = index.to(torch.int32)
        return torch.stack([permute(index32, lengths, column, None, total)[1] for column in columns], dim=1)

    found: dict[str, dict[str, Call]] = {
        "dispatch": {
            "eager": lambda: eager_dispatch(values_TD, lengths_S, rank_S, world),
            "torch": lambda: jagged.ranged_dispatch(values_TD, begin_sent_S, sent_lengths_S, total=total),
            "fbgemm": lambda: fbgemm(columns_DT, lengths_S, order_S),
        },
        "combine": {
            "eager": lambda: eager_combine(sent_TD, lengths_S, rank_S, world),
            "torch": lambda: jagged.ranged_combine(sent_TD, begin_sent_S, sent_lengths_S),
            "fbgemm": lambda: fbgemm(sent_columns_DT, sent_lengths_S, back_S),
        },
    }
    if device.type == "cuda":
        from repro.kernels import triton_jagged

        found["dispatch"]["triton"] = lambda: triton_jagged.ranged_dispatch(
            values_TD, begin_sent_S, sent_lengths_S, total=total
        )
        found["combine"]["triton"] = lambda: triton_jagged.ranged_combine(sent_TD, begin_sent_S, sent_lengths_S)
    return found


def eager_dispatch(values_TD: torch.Tensor, lengths_S: torch.Tensor, rank_S: torch.Tensor, world: int) -> torch.Tensor:
    """Rank after rank: mask the rows of its samples, append them."""
    rank_T = torch.repeat_interleave(rank_S, lengths_S)
    return torch.cat([values_TD[rank_T == rank] for rank in range(world)])


def eager_combine(sent_TD: torch.Tensor, lengths_S: torch.Tensor, rank_S: torch.Tensor, world: int) -> torch.Tensor:
    """Rank after rank: write its chunk to the rows of its samples."""
    rank_T = torch.repeat_interleave(rank_S, lengths_S)
    combined = torch.empty_like(sent_TD)
    taken = 0
    for rank in range(world):
        mask = rank_T == rank
        count = int(mask.sum())
        combined[mask] = sent_TD[taken : taken + count]
        taken += count
    return combined


def latency_us(call: Call, device: torch.device) -> tuple[float, float]:
    """Shortest and median time of one call, microseconds, from the host's start to the device's end."""
    times: list[float] = []
    _once(call, device)
    began = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - began < SECONDS_EACH and len(times) < MOST_REPEATS):
        times.append(_once(call, device))
    return 1e6 * min(times), 1e6 * statistics.median(times)


def _once(call: Call, device: torch.device) -> float:
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def measure(device: torch.device) -> dict[str, Any]:
    """All latencies, and what they were measured on.

    Raises:
        RuntimeError: two implementations differ.
    """
    rows = []
    for world in WORLDS:
        for operation, implementations in calls(world, device).items():
            wanted = implementations["torch"]()
            for implementation, call in implementations.items():
                if not torch.equal(call(), wanted):
                    raise RuntimeError(f"{operation} by {implementation} differs at world {world}")
            latency = {name: latency_us(call, device) for name, call in implementations.items()}
            rows += [
                {
                    "operation": operation,
                    "implementation": name,
                    "world": world,
                    "latency_us": shortest,
                    "median_us": median,
                    "speedup_over_eager": latency["eager"][0] / shortest,
                }
                for name, (shortest, median) in latency.items()
            ]
    return {"experiment": "fig07", "mode": "measured", "device": device_name(device), "rows": rows}


def device_name(device: torch.device) -> str:
    """What the numbers hold for."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, one thread), no GPU: Triton not measured"


def draw(result: dict[str, Any], path: Path) -> None:
    """Latency against world size, one panel an operation."""
    figure, panels = plt.subplots(1, len(OPERATIONS), figsize=(9, 3.6), sharey=True, layout="constrained")
    for panel, operation in zip(np.atleast_1d(panels), OPERATIONS, strict=True):
        rows = [row for row in result["rows"] if row["operation"] == operation]
        for name in dict.fromkeys(row["implementation"] for row in rows):
            points = [(row["world"], row["latency_us"]) for row in rows if row["implementation"] == name]
            panel.plot(*zip(*points, strict=True), marker="o", label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(WORLDS, [str(world) for world in WORLDS])
        panel.set_xlabel("World size (ranks)")
        panel.set_title(f"Jagged {operation}")
        panel.grid(alpha=0.3)
    np.atleast_1d(panels)[0].set_ylabel("Shortest latency of one call (µs)")
    np.atleast_1d(panels)[0].legend()
    figure.suptitle(f"Measured on {result['device']}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, write, draw, print."""
    parser = argparse.ArgumentParser(description="latency of jagged dispatch and combine against world size (Fig. 7)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of results (default: results)")
    folder = parser.parse_args().results / "bench"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    result = measure(device)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fig07.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    draw(result, folder / "fig07.svg")
    print(f"Measured on {result['device']}; shortest latency in microseconds (times faster than eager)")
    for operation in OPERATIONS:
        rows = [row for row in result["rows"] if row["operation"] == operation]
        names = list(dict.fromkeys(row["implementation"] for row in rows))
        print(f"\n{operation:>9}" + "".join(f"{name:>20}" for name in names))
        for world in WORLDS:
            cells = {row["implementation"]: row for row in rows if row["world"] == world}
            shown = [f"{cells[name]['latency_us']:,.0f} ({cells[name]['speedup_over_eager']:.1f}x)" for name in names]
            print(f"{world:>9}" + "".join(f"{text:>20}" for text in shown))
    print(f"\nwrote {folder / 'fig07.json'} and {folder / 'fig07.svg'}")


if __name__ == "__main__":
    main()
