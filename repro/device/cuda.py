"""A CUDA GPU as a device: marks are events on the current stream, anchored to the host clock.

The anchor is an event recorded and synchronized once; a mark's host time is the anchor's host time plus the elapsed
time between the two events (resolution about 0.5 us, https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__EVENT.html).
"""

from __future__ import annotations

import time
from typing import Any

import torch


class CudaDevice:
    """A rank on one GPU; collectives through NCCL."""

    backend = "nccl"

    def __init__(self, local_rank: int) -> None:
        self.torch_device = torch.device("cuda", local_rank)
        torch.cuda.set_device(self.torch_device)
        self.name = torch.cuda.get_device_name(self.torch_device)
        torch.cuda.synchronize()
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._anchor.record()
        self._anchor.synchronize()
        self._anchor_ns = time.perf_counter_ns()

    def mark(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resolve_ns(self, mark: torch.cuda.Event | int) -> int:
        """Host monotonic clock at the event, nanoseconds; an int is host time already."""
        if isinstance(mark, int):
            return mark
        return self._anchor_ns + round(self._anchor.elapsed_time(mark) * 1e6)

    def synchronize(self) -> None:
        """Return when the GPU is idle."""
        torch.cuda.synchronize()

    def pinned(self, batch: Any) -> Any:
        """The batch with its tensors in pinned memory (`Pipelineable.pin_memory`)."""
        return batch.pin_memory()
