"""Generating a synthetic log against writing the same columns as Parquet from memory, in one run.

Command    python -m benchmarks.synthetic [--events 100000000]
Claim      100 M events: at most 3 x the time of writing the same columns, under 2 GB of memory

Generation is what `repro prepare` does, from knobs to manifest, checksums included, in a process of its own, whose peak
memory counts. The other side is pyarrow alone: each shard's columns are read back into memory (not timed) and written
once more with the same compression (timed).
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from data_prep.prepare import prepare_source
from data_prep.synthetic import SyntheticLog, source
from data_prep.synthetic_events import plan_users
from data_prep.synthetic_presets import INDUSTRIAL_21K


def knobs_for(events: int) -> SyntheticLog:
    """The industrial preset with as many users as give about that many events."""
    plan = plan_users(INDUSTRIAL_21K)
    users = max(1, round(INDUSTRIAL_21K.users * events / plan.events))
    return dataclasses.replace(INDUSTRIAL_21K, users=users, name="benchmark")


def prepare(events: int, root: Path) -> tuple[float, float]:
    """Prepare about `events` events under `root`; seconds, and peak resident bytes of this process."""
    began = time.perf_counter()
    prepare_source(source(knobs_for(events)), root / "data", key_path=root / "key")
    return time.perf_counter() - began, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def write_again(folder: Path) -> tuple[float, int]:
    """Seconds to write all shards of `folder` from memory, and events among them."""
    seconds, events = 0.0, 0
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        events += table.num_rows if path.name.startswith("events-") else 0
        began = time.perf_counter()
        pq.write_table(table, folder / "again", compression="zstd")
        seconds += time.perf_counter() - began
        del table
    return seconds, events


def measure(events: int, scratch: Path | None = None) -> dict[str, float]:
    """Events made, seconds of both sides, their ratio, peak memory in GB."""
    with tempfile.TemporaryDirectory(dir=scratch) as root:
        # A fresh process: its peak memory is the generator's own.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            prepared, peak = pool.apply(prepare, (events, Path(root)))
        written, made = write_again(Path(root) / "data" / "benchmark")
    return {
        "events": made,
        "prepare_s": prepared,
        "write_s": written,
        "ratio": prepared / written,
        "peak_gb": peak / 1e9,
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--scratch", type=Path, help="folder for some GB of files (default: the system's)")
    options = parser.parse_args()
    found = measure(options.events, options.scratch)
    print(
        f"{found['events']:,.0f} events: prepared in {found['prepare_s']:.1f} s, same columns written in "
        f"{found['write_s']:.1f} s; ratio {found['ratio']:.2f} (at most 3); peak {found['peak_gb']:.2f} GB (under 2)"
    )


if __name__ == "__main__":
    main()
