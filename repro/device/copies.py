"""Copies between a device and host memory, issued by threads that are not the main one.

    DirectCopies  tensors lie in host memory: there is nothing to copy, and nothing is
    StagedCopies  host tensors, copied through the pool all the same: what a GPU needs, without one (tests)
    CudaCopies    copy engines of a GPU, on two streams of their own; **has not been run on a GPU yet**

A copy engine works off its queue in order, so a large copy holds up whatever comes after it: copies are cut into
chunks, and no more than `COPIES_IN_FLIGHT` wait in a direction. Events are polled with a timeout, since one that never
completes would hang its thread for good (seen in other SM-free transports when too many copies were queued).
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

COPIES_IN_FLIGHT = 2
"""Per direction: one that runs and one behind it, so that the copy engine never idles between chunks."""
POLL_SECONDS = 20e-6

Ticket = Any
"""A copy under way, or a point of a stream; opaque to callers."""


class Copies(Protocol):
    """What a transport needs of a device."""

    staged: bool
    """Chunks go through a pool of host memory."""
    pin: bool
    """That memory must be page-locked."""

    def ready(self, *tensors: torch.Tensor) -> Ticket:
        """Called by whoever owns the tensors: they may be used once all work issued so far has ended."""

    def follow(self, ready: Ticket) -> None:
        """Called by a lane's thread: its copies come after that point."""

    def down(self, device: torch.Tensor, host: torch.Tensor) -> Ticket:
        """Start to copy a chunk to host memory."""

    def up(self, host: torch.Tensor, device: torch.Tensor) -> Ticket:
        """Start to copy a chunk from host memory."""

    def within(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy on the device, in order with `up`."""

    def settle(self, ticket: Ticket) -> None:
        """Return when that copy has ended.

        Raises:
            RuntimeError: it did not end in time.
        """

    def point(self) -> Ticket:
        """After all `up` and `within` so far."""

    def reached(self, point: Ticket) -> bool:
        """Whether that point has been reached."""

    def join(self, point: Ticket) -> None:
        """Work that the calling thread issues from now on comes after that point."""


class DirectCopies:
    """Host tensors are sent from and received into where they lie."""

    staged = False
    pin = False

    def ready(self, *tensors: torch.Tensor) -> Ticket:
        """Host tensors are ready when they are handed over."""

    def follow(self, ready: Ticket) -> None:
        """Nothing to wait for."""

    def down(self, device: torch.Tensor, host: torch.Tensor) -> Ticket:
        """Copy now."""
        host.copy_(device)

    def up(self, host: torch.Tensor, device: torch.Tensor) -> Ticket:
        """Copy now."""
        device.copy_(host)

    def within(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy now."""
        target.copy_(source)

    def settle(self, ticket: Ticket) -> None:
        """It ended when it was issued."""

    def point(self) -> Ticket:
        """Everything has ended when it was issued."""

    def reached(self, point: Ticket) -> bool:
        """Always."""
        return True

    def join(self, point: Ticket) -> None:
        """Nothing to wait for."""


class StagedCopies(DirectCopies):
    """Host tensors through the pool: the path of a GPU, for tests where there is none."""

    staged = True


class CudaCopies:
    """Device tensors through page-locked memory, by copy engines. Not run on a GPU yet."""

    staged = True
    pin = True

    def __init__(self, device: torch.device, timeout_seconds: float) -> None:
        self._device = device
        self._timeout = timeout_seconds
        self._down = torch.cuda.Stream(device)
        self._up = torch.cuda.Stream(device)

    def ready(self, *tensors: torch.Tensor) -> torch.cuda.Event:
        """An event on the caller's stream; the tensors' memory is not reused before the copies have read it."""
        for tensor in tensors:
            tensor.record_stream(self._down)
            tensor.record_stream(self._up)
        return self._mark(torch.cuda.current_stream(self._device))

    def follow(self, ready: torch.cuda.Event) -> None:
        """Both copy streams wait for the event."""
        self._down.wait_event(ready)
        self._up.wait_event(ready)

    def down(self, device: torch.Tensor, host: torch.Tensor) -> torch.cuda.Event:
        """Device to host, on the stream of that direction."""
        with torch.cuda.stream(self._down):
            host.copy_(device, non_blocking=True)
        return self._mark(self._down)

    def up(self, host: torch.Tensor, device: torch.Tensor) -> torch.cuda.Event:
        """Host to device, on the stream of that direction."""
        with torch.cuda.stream(self._up):
            device.copy_(host, non_blocking=True)
        return self._mark(self._up)

    def within(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Device to device. The only copy that may use SMs: the driver chooses."""
        with torch.cuda.stream(self._up):
            target.copy_(source, non_blocking=True)

    def settle(self, ticket: torch.cuda.Event) -> None:
        """Poll the event, with a timeout.

        Raises:
            RuntimeError: it did not complete in time.
        """
        deadline = time.monotonic() + self._timeout
        while not ticket.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"a copy of the GPU did not end within {self._timeout:g} s")
            time.sleep(POLL_SECONDS)

    def point(self) -> torch.cuda.Event:
        """An event on the stream of copies to the device."""
        return self._mark(self._up)

    def reached(self, point: torch.cuda.Event) -> bool:
        """Whether the event has completed."""
        return bool(point.query())

    def join(self, point: torch.cuda.Event) -> None:
        """The caller's stream waits for the event; the host does not."""
        torch.cuda.current_stream(self._device).wait_event(point)

    def _mark(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(stream)
        return event


def copies_for(device: torch.device, timeout_seconds: float) -> Copies:
    """The copies that tensors of `device` need."""
    return CudaCopies(device, timeout_seconds) if device.type == "cuda" else DirectCopies()
