"""The reader against NumPy copying the same bytes out of the memory map, in one run on one core.

Command    python -m benchmarks.read [DATASET] [--data data/prepared] [--max-uih 21000]
Claim      the reader delivers at least half the bytes a second that NumPy copies

The other side knows every range beforehand and does nothing but `column[begin:end].copy()`. Both run warm (the files
are in the page cache), in turns, and the best of several rounds counts. `collate` is shown beside: the copy into a
KeyedJaggedTensor, int64, that training needs.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from repro.data.batch import collate
from repro.data.dataset import PreparedDataset, RequestBlock

ROUNDS = 7


def block_bytes(block: RequestBlock) -> int:
    """Bytes of histories and candidates in a block."""
    arrays = [block.uih_time, block.label, *block.uih.values(), *block.candidate.values()]
    return sum(array.nbytes for array in arrays)


def copies(dataset: PreparedDataset, rows: np.ndarray, max_uih: int) -> Callable[[], list[np.ndarray]]:
    """Copies what `read` would, range by range, from ranges found beforehand."""
    features = dataset.manifest.features
    events = [dataset.event_time, *(dataset.event_feature(f.name) for f in features)]
    candidates = [dataset.label, *(dataset.candidate_feature(f.name) for f in features if f.of_candidate)]
    end_R = dataset.uih_end[rows]
    from_R = end_R - dataset.uih_lengths(rows, max_uih)
    event_slices = [slice(*pair) for pair in zip(from_R.tolist(), end_R.tolist(), strict=True)]
    begin_R, stop_R = dataset.candidate_offsets[rows].tolist(), dataset.candidate_offsets[rows + 1].tolist()
    candidate_slices = [slice(*pair) for pair in zip(begin_R, stop_R, strict=True)]

    def copy() -> list[np.ndarray]:
        return [
            column[part].copy()
            for columns, slices in ((events, event_slices), (candidates, candidate_slices))
            for column in columns
            for part in slices
        ]

    return copy


def measure(
    dataset: PreparedDataset, *, batch: int = 128, max_uih: int = 21_000, batches: int = 20
) -> dict[str, float]:
    """GB/s of both sides, their ratio, and the reader's and collate's milliseconds a batch of one rank."""
    available = dataset.global_batches(batch)
    steps = np.unique(np.linspace(0, available - 1, min(batches, available)).astype(int)).tolist()
    rows = [dataset.global_rows(t, batch) for t in steps]
    blocks = [dataset.read(part, max_uih) for part in rows]
    copy = [copies(dataset, part, max_uih) for part in rows]
    best = dict.fromkeys(("read", "copy", "collate"), np.inf)
    for _ in range(ROUNDS):
        for name, work in (
            ("read", [functools.partial(dataset.read, part, max_uih) for part in rows]),
            ("copy", copy),
            ("collate", [functools.partial(collate, block, 1) for block in blocks]),
        ):
            began = time.perf_counter()
            for one in work:
                one()
            best[name] = min(best[name], time.perf_counter() - began)
    size = sum(block_bytes(block) for block in blocks)
    return {
        "read_gb_s": size / best["read"] / 1e9,
        "copy_gb_s": size / best["copy"] / 1e9,
        "ratio": best["copy"] / best["read"],
        "read_ms": 1e3 * best["read"] / len(rows),
        "collate_ms": 1e3 * best["collate"] / len(rows),
        "tokens": float(np.mean([block.uih_lengths.sum() for block in blocks])),
    }


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", default="industrial-21k")
    parser.add_argument("--data", type=Path, default=Path("data/prepared"))
    parser.add_argument("--max-uih", type=int, default=21_000)
    options = parser.parse_args()
    found = measure(PreparedDataset.open(options.data / options.dataset), max_uih=options.max_uih)
    print(f"{options.dataset}, max UIH {options.max_uih:,}, 128 requests of {found['tokens']:,.0f} events a batch")
    print(f"  reader        {found['read_gb_s']:6.2f} GB/s, {found['read_ms']:.2f} ms a batch")
    print(
        f"  NumPy copies  {found['copy_gb_s']:6.2f} GB/s; the reader reaches {found['ratio']:.2f} of it (at least 0.5)"
    )
    print(f"  collate       {found['collate_ms']:.2f} ms a batch")


if __name__ == "__main__":
    main()
