"""The CPU as a device: marks are host times, nothing is asynchronous."""

from __future__ import annotations

import time
from typing import TypeVar

import torch

Batch = TypeVar("Batch")


class CpuDevice:
    """A rank on CPU cores; collectives through gloo."""

    name = "cpu"
    torch_device = torch.device("cpu")
    backend = "gloo"

    def mark(self) -> int:
        """Host monotonic clock, nanoseconds."""
        return time.perf_counter_ns()

    def resolve_ns(self, mark: int) -> int:
        """The mark itself."""
        return mark

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def pinned(self, batch: Batch) -> Batch:
        """The batch itself: there is no copy to overlap."""
        return batch
