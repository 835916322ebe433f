"""Staging memory between a device and the network: registered once, bounded, reused.

Pinning memory stalls the device, so nothing is pinned on the path of a step: the pool is one allocation made at the
start, and it never grows. When all its chunks are in use, `take` blocks (the network is slower than the copies, and
that is what backpressure is for), and fails after a time in which something is bound to have come free.
"""

from __future__ import annotations

import threading

import torch


class PinnedPool:
    """Equal chunks of host memory. Any thread may take and give."""

    def __init__(self, chunk_bytes: int, chunks: int, *, pin: bool, timeout_seconds: float) -> None:
        """
        Args:
            pin: page-locked, for copies of a GPU; needs CUDA.
            timeout_seconds: how long `take` waits for a free chunk.
        """
        self.cap_bytes = chunk_bytes * chunks
        """All that the pool ever holds."""
        self._memory = torch.empty(self.cap_bytes, dtype=torch.uint8, pin_memory=pin)
        self._free = list(self._memory.split(chunk_bytes)) if chunks else []
        self._chunks = chunks
        self._timeout = timeout_seconds
        self._changed = threading.Condition()
        self._closed = False
        self.peak_chunks = 0
        """Most chunks that were in use at once."""

    @property
    def chunks_in_use(self) -> int:
        """Chunks taken and not given back."""
        return self._chunks - len(self._free)

    def take(self) -> torch.Tensor:
        """A free chunk, uint8 (chunk_bytes,); blocks until there is one.

        Raises:
            RuntimeError: none came free in time, or the pool was closed.
        """
        with self._changed:
            free = self._changed.wait_for(lambda: self._closed or bool(self._free), self._timeout)
            if self._closed:
                raise RuntimeError("the pinned pool was closed")
            if not free:
                raise RuntimeError(
                    f"all {self._chunks} chunks of the pinned pool stayed in use for {self._timeout:g} s"
                )
            chunk = self._free.pop()
            self.peak_chunks = max(self.peak_chunks, self.chunks_in_use)
            return chunk

    def give(self, chunk: torch.Tensor) -> None:
        """Return a chunk that `take` handed out."""
        with self._changed:
            self._free.append(chunk)
            self._changed.notify()

    def close(self) -> None:
        """Whoever waits in `take`, and whoever comes, gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
