"""The device room: events and pinned memory of one accelerator, behind one small contract.

A `Mark` is a point in time: nanoseconds of the host clock on a CPU, an event on the current stream on CUDA. Both
resolve to the host's monotonic clock, so CPU and CUDA ranks walk the same code and share one timeline.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch

Mark = Any
"""Opaque to callers: pass it to the device that made it."""

Pinnable = TypeVar("Pinnable")


class Device(Protocol):
    """What a rank computes on."""

    name: str
    """Human-readable, e.g. `cpu` or the GPU's product name."""
    torch_device: torch.device
    backend: str
    """Backend of the process group for its tensors: gloo or nccl."""

    def mark(self) -> Mark:
        """This point of the current stream."""

    def resolve_ns(self, mark: Mark) -> int:
        """Host monotonic clock at `mark`, nanoseconds. Valid after `synchronize`."""

    def synchronize(self) -> None:
        """Return when all work issued so far has ended."""

    def pinned(self, batch: Pinnable) -> Pinnable:
        """`batch` in memory that the device can copy from asynchronously."""


def local_device(local_rank: int) -> Device:
    """The device of this machine's `local_rank`: its GPU where CUDA is available, else the CPU."""
    if torch.cuda.is_available():
        from repro.device.cuda import CudaDevice

        return CudaDevice(local_rank)
    from repro.device.cpu import CpuDevice

    return CpuDevice()
