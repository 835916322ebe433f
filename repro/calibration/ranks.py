"""One rank of the measurement of collectives, in a process of its own.

    python -m repro.calibration.ranks RANK JOB.json

The job names the rendezvous file, the sizes and where rank 0 puts the rows. A repeat runs every transport in turn, so
that all see the same state of the machine; a time is that of the slowest rank.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from repro.calibration.profile import CollectiveTime, spread
from repro.comm.transport import ProcessGroupTransport, Transport
from repro.comm.transport.host_ring import HostRing

TIMEOUT = datetime.timedelta(seconds=60)
WARMUPS = 3
CPU = torch.device("cpu")


def measure(sizes: list[int], chunks: list[int], repeats: int) -> list[CollectiveTime]:
    """Every collective of every transport at every size, between all ranks; gloo, on host memory.

    Args:
        sizes: bytes that a rank gives.
        chunks: chunk sizes of `host_ring`, bytes; one transport each.
        repeats: at least two.
    """
    group = dist.group.WORLD
    assert group is not None, "the ranks have not met yet"
    rings = [HostRing.connect(CPU, chunk_bytes=chunk, timeout=TIMEOUT) for chunk in chunks]
    transports: tuple[Transport, ...] = (ProcessGroupTransport(group), *rings)
    rows = []
    for size in sizes:
        for collective, runs in _collectives(transports, size):
            seconds: dict[Transport, list[float]] = {way: [] for way in runs}
            for repeat in range(WARMUPS + repeats):
                for way, run in runs.items():
                    taken = _slowest(run)
                    if repeat >= WARMUPS:
                        seconds[way].append(taken)
            rows += [
                CollectiveTime(
                    transport=way.name,
                    chunk_bytes=way.chunk_bytes if isinstance(way, HostRing) else None,
                    collective=collective,
                    world=dist.get_world_size(),
                    bytes=size,
                    seconds=spread(taken_R),
                )
                for way, taken_R in seconds.items()
            ]
    dist.barrier()
    for transport in transports:
        transport.close()
    return rows


def _collectives(
    transports: tuple[Transport, ...], size: int
) -> Iterator[tuple[str, dict[Transport, Callable[[], object]]]]:
    """Each collective with what runs it, by transport."""
    world = dist.get_world_size()
    share = size // (world - 1)
    sent, received = (torch.ones(world * share, dtype=torch.uint8) for _ in range(2))
    yield "all_to_all", {way: _all_to_all(way, received, sent) for way in transports}
    part, whole = torch.ones(size, dtype=torch.uint8), torch.ones(world * size, dtype=torch.uint8)
    yield "all_gather", {way: _all_gather(way, whole, part) for way in transports}
    # Only a process group adds. Zeros stay zeros however often they are added up.
    total = torch.zeros(size // 4)
    yield "all_reduce", {transports[0]: lambda: dist.all_reduce(total)}


def _all_to_all(way: Transport, output: torch.Tensor, input: torch.Tensor) -> Callable[[], object]:
    return lambda: way.all_to_all_single(output, input).wait()


def _all_gather(way: Transport, output: torch.Tensor, input: torch.Tensor) -> Callable[[], object]:
    return lambda: way.all_gather(output, input).wait()


def _slowest(run: Callable[[], object]) -> float:
    dist.barrier()
    began = time.perf_counter()
    run()
    taken = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def main(rank: int, job_path: Path) -> None:
    """Join, measure, and let rank 0 write."""
    job = json.loads(job_path.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job['rendezvous']}", rank=rank, world_size=job["world"], timeout=TIMEOUT
    )
    rows = measure(job["sizes"], job["chunks"], job["repeats"])
    if rank == 0:
        Path(job["out"]).write_text(json.dumps([dataclasses.asdict(row) for row in rows]), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
