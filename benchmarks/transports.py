"""Bandwidth of every transport against message size, on a shaped network.

Command    python -m benchmarks.transports [--results results] [--rate 200] [--worlds 2,4]
           Root and iproute2 are needed: ranks live in network namespaces (repro.launch.network).
Writes     results/bench/transports.json and transports.svg
Workload   AllToAll and AllGather in which every rank sends the given payload, in equal shares. A repeat runs every
           transport in turn, so all see the same state of the machine; a time is that of the slowest rank.
Compared   process_group: gloo's own collectives; host_ring; padded: uneven splits through gloo's equal ones (here the
           splits are equal, so it shows the cost of agreeing on them alone)
Must hold  host_ring AllToAll: at least 90 % of the link's rate from 4 MB up; at least 1.7x gloo's own in the same run.
           The second cannot hold where gloo's own is faster than rate / 1.7, as between 4 ranks: the link could not
           carry it. Each verdict says what the link allows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist

from repro.comm.transport import ProcessGroupTransport, Transport
from repro.comm.transport.host_ring import CHUNK_BYTES, DEPTH, HostRing
from repro.comm.transport.padded import PaddedExchange
from repro.config import NetworkConfig
from repro.launch.network import INTERFACE, address, joined, obstacle

SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
REPEATS = 7
PORT = 29_571
TIMEOUT = datetime.timedelta(minutes=2)
HELD_FROM = 4 << 20
SHARE_OF_RATE = 0.9
SPEEDUP = 1.7
COLLECTIVES = ("all_to_all", "all_gather")


def rank(out: Path, chunk_bytes: int, depth: int) -> None:
    """One rank of the measurement; rank 0 writes the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    world = dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    transports: tuple[Transport, ...] = (
        ProcessGroupTransport(group),
        HostRing.connect(torch.device("cpu"), chunk_bytes=chunk_bytes, depth=depth, timeout=TIMEOUT),
        PaddedExchange(dist.new_group(backend="gloo"), dist.new_group(backend="gloo")),
    )
    rows = []
    for size in SIZES:
        for collective in COLLECTIVES:
            seconds: dict[str, list[float]] = {transport.name: [] for transport in transports}
            for repeat in range(REPEATS + 1):
                for transport in transports:
                    taken = _once(transport, collective, size // (world - 1))
                    if repeat:
                        seconds[transport.name].append(taken)
            for name, taken_R in seconds.items():
                mbit = [size * 8 / taken / 1e6 for taken in taken_R]
                rows.append(
                    {
                        "world": world,
                        "collective": collective,
                        "bytes": size,
                        "transport": name,
                        "mbit_per_s": statistics.median(mbit),
                        "slowest": min(mbit),
                        "fastest": max(mbit),
                    }
                )
    dist.barrier()
    for transport in transports:
        transport.close()
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def _once(transport: Transport, collective: str, share: int) -> float:
    """Seconds of the slowest rank, with `share` bytes to each other rank."""
    world = transport.world
    if collective == "all_to_all":
        input, output = torch.ones(world * share, dtype=torch.uint8), torch.empty(world * share, dtype=torch.uint8)
    else:  # a ring sends every block but its receiver's: world - 1 of them, as many bytes as an AllToAll of this size
        input, output = torch.ones(share, dtype=torch.uint8), torch.empty(world * share, dtype=torch.uint8)
    dist.barrier()
    began = time.perf_counter()
    if collective == "all_to_all":
        transport.all_to_all_single(output, input).wait()
    else:
        transport.all_gather(output, input).wait()
    slowest = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def measure(rate_mbit: float, worlds: tuple[int, ...], chunk_bytes: int, depth: int) -> dict[str, Any]:
    """All rows, and the verdicts.

    Raises:
        RuntimeError: a rank failed.
        SystemExit: this machine cannot shape a network.
    """
    if (reason := obstacle()) is not None:
        raise SystemExit(f"benchmarks.transports: {reason}")
    rows: list[dict[str, Any]] = []
    notes: tuple[str, ...] = ()
    with tempfile.TemporaryDirectory() as folder:
        for world in worlds:
            out = Path(folder) / f"{world}.json"
            command = [sys.executable, "-m", "benchmarks.transports", "--rank", str(out)]
            command += ["--chunk-kib", str(chunk_bytes >> 10), "--depth", str(depth)]
            with joined(NetworkConfig(rate_mbit=rate_mbit), world) as network:
                notes = network.notes
                if not network.namespaces:
                    raise SystemExit(f"benchmarks.transports: {notes[0]}")
                ranks = [
                    subprocess.Popen(
                        network.command(number, command),
                        env={
                            **os.environ,
                            "RANK": str(number),
                            "WORLD_SIZE": str(world),
                            "MASTER_ADDR": address(0),
                            "MASTER_PORT": str(PORT),
                            "GLOO_SOCKET_IFNAME": INTERFACE,
                            "OMP_NUM_THREADS": "1",
                        },
                    )
                    for number in range(world)
                ]
                codes = [started.wait() for started in ranks]
            if any(codes):
                raise RuntimeError(f"ranks of a world of {world} ended with {codes}")
            rows += json.loads(out.read_text(encoding="utf-8"))
    return {
        "mode": "measured",
        "rate_mbit": rate_mbit,
        "chunk_bytes": chunk_bytes,
        "depth": depth,
        "network": notes,
        "torch": torch.__version__,
        "rows": rows,
        "verdicts": verdicts(rows, rate_mbit),
    }


def verdicts(rows: list[dict[str, Any]], rate_mbit: float) -> list[dict[str, Any]]:
    """Of each AllToAll from `HELD_FROM` up: share of the link's rate, ratio to gloo's own, and whether both suffice."""
    median = {(row["world"], row["bytes"], row["transport"]): row["mbit_per_s"] for row in rows if _held(row)}
    found = []
    for (world, size, transport), ring in median.items():
        if transport != "host_ring":
            continue
        own = median[world, size, "process_group"]
        found.append(
            {
                "world": world,
                "bytes": size,
                "share_of_rate": ring / rate_mbit,
                "share_holds": ring / rate_mbit >= SHARE_OF_RATE,
                "speedup": ring / own,
                "speedup_holds": ring / own >= SPEEDUP,
                "most_speedup_the_link_allows": rate_mbit / own,
            }
        )
    return found


def _held(row: dict[str, Any]) -> bool:
    return bool(row["collective"] == "all_to_all" and row["bytes"] >= HELD_FROM)


def draw(found: dict[str, Any], path: Path) -> None:
    """Bandwidth against size: a row a collective, a column a world."""
    worlds = sorted({row["world"] for row in found["rows"]})
    colour = {"process_group": "#E69F00", "host_ring": "#009E73", "padded": "#CC79A7"}
    marker = {"process_group": "o", "host_ring": "X", "padded": "v"}
    figure, axes = plt.subplots(
        len(COLLECTIVES), len(worlds), figsize=(9, 6.5), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for line, collective in zip(axes, COLLECTIVES, strict=True):
        for axis, world in zip(line, worlds, strict=True):
            for name in colour:
                rows = [
                    row
                    for row in found["rows"]
                    if (row["world"], row["collective"], row["transport"]) == (world, collective, name)
                ]
                size = [row["bytes"] / 2**20 for row in rows]
                middle = [row["mbit_per_s"] for row in rows]
                spread = [
                    [row["mbit_per_s"] - row["slowest"] for row in rows],
                    [row["fastest"] - row["mbit_per_s"] for row in rows],
                ]
                axis.errorbar(size, middle, spread, label=name, color=colour[name], marker=marker[name], capsize=2)
            axis.axhline(found["rate_mbit"], color="#24292f", linewidth=0.8, linestyle=":")
            axis.axhline(SHARE_OF_RATE * found["rate_mbit"], color="#8c959f", linewidth=0.8, linestyle="--")
            axis.set(xscale="log", title=f"{collective}, {world} ranks", ylim=(0, None))
            axis.set_xticks([size / 2**20 for size in SIZES], [f"{size / 2**20:g}" for size in SIZES], minor=False)
            axis.minorticks_off()
    figure.supxlabel("payload that every rank sends (MiB)")
    figure.supylabel("Mbit/s a rank and direction (median; bars: all repeats)")
    figure.suptitle(f"Measured on CPU ranks; dotted: the link, {found['rate_mbit']:g} Mbit/s; dashed: 90 % of it")
    axes[0][0].legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--rate", type=float, default=200.0, help="of each link, Mbit/s")
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--chunk-kib", type=int, default=CHUNK_BYTES >> 10)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        rank(options.rank, options.chunk_kib << 10, options.depth)
        return
    worlds = tuple(int(world) for world in options.worlds.split(","))
    found = measure(options.rate, worlds, options.chunk_kib << 10, options.depth)
    folder = options.results / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "transports.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    draw(found, folder / "transports.svg")
    for row in found["rows"]:
        print(
            f"{row['world']} ranks  {row['collective']:<10}  {row['bytes'] / 2**20:>7.3f} MiB  {row['transport']:<13}"
            f"  {row['mbit_per_s']:6.1f} Mbit/s  ({row['slowest']:.1f} .. {row['fastest']:.1f})"
        )
    for verdict in found["verdicts"]:
        print(
            f"{verdict['world']} ranks, {verdict['bytes'] >> 20} MiB: {verdict['share_of_rate']:.1%} of the link "
            f"({'holds' if verdict['share_holds'] else 'FAILS'}), {verdict['speedup']:.2f}x gloo's own "
            f"({'holds' if verdict['speedup_holds'] else 'fails'}; the link allows "
            f"{verdict['most_speedup_the_link_allows']:.2f}x)"
        )


if __name__ == "__main__":
    main()
