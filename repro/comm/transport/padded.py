"""Uneven AllToAll through an equal-split one: every share is padded to the largest share of any pair of ranks.

NCCL's zero-SM policy and other copy-engine collectives take equal splits only. What padding costs is reported, never
hidden: `sent_bytes` stays the payload, `wasted_bytes` is what was sent on top.

    rank 0 sends 3 rows to itself and 1 to rank 1; the largest share anywhere is 3: [a b c | d . .], 2 rows wasted

The largest share is agreed on by an AllGather of one number on a group of host memory, so this runs on a lane.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from repro.comm.transport.contract import Handle, Transport, as_bytes
from repro.comm.transport.process_group import torch_all_to_all_single
from repro.device.lane import Lane


class PaddedExchange(Transport):
    """Over a process group's equal-split collectives. Host tensors only: that of a GPU needs registered windows."""

    name = "padded"

    def __init__(self, group: dist.ProcessGroup, sizes: dist.ProcessGroup) -> None:
        """
        Args:
            group: moves the payload; nothing else uses it.
            sizes: a gloo group that nothing else uses.
        """
        super().__init__(group)
        self._sizes = sizes
        self._lane = Lane("padded")
        self.wasted_bytes = 0
        """Padding that left this rank so far."""

    def close(self) -> None:
        """End the lane. The groups are not this transport's to close."""
        self._lane.close()

    def _all_to_all(self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int]) -> Handle:
        output_B, input_B = as_bytes(output), as_bytes(input)

        def exchange() -> None:
            largest_W = torch.empty(self.world, dtype=torch.int64)
            dist.all_gather_single(largest_W, torch.tensor([max(sent)]), group=self._sizes)
            share = int(largest_W.max())
            padded = torch.empty(self.world * share, dtype=torch.uint8)
            torch_all_to_all_single(padded, pad(input_B, sent, share), group=self.group)
            unpad(padded, received, share, output_B)
            self.wasted_bytes += sum(share - size for peer, size in enumerate(sent) if peer != self.rank)

        return LaneWork(self._lane, exchange)

    def _all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Handle:
        output_B, input_B = as_bytes(output), as_bytes(input)
        return LaneWork(self._lane, lambda: dist.all_gather_single(output_B, input_B, group=self.group))


class LaneWork(dist.Work):
    """Something a lane does, as a collective in flight."""

    def __init__(self, lane: Lane, work: Any) -> None:
        super().__init__()
        self._ended = threading.Event()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._result = lane.submit(work)
        self._result.add_done_callback(self._end)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until it has ended.

        Raises:
            RuntimeError: it failed, or `timeout` passed.
        """
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            raise RuntimeError("not done within the time given")
        self._result.result()
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def get_future(self) -> torch.futures.Future[Any]:
        """Done when it has ended."""
        return self._future

    def _end(self, result: Future[Any]) -> None:
        self._future.set_result(None)
        self._ended.set()


def pad(input_B: torch.Tensor, sent: list[int], share: int) -> torch.Tensor:
    """Each rank's share at the start of a slot of `share` bytes, uint8 (world x share,); the rest is zero."""
    padded = torch.zeros(len(sent) * share, dtype=torch.uint8)
    for slot, part in zip(padded.split(share) if share else (), input_B.split(sent), strict=False):
        slot[: part.numel()] = part
    return padded


def unpad(padded: torch.Tensor, received: list[int], share: int, output_B: torch.Tensor) -> None:
    """Undo `pad` at the receiving end."""
    for slot, part in zip(padded.split(share) if share else (), output_B.split(received), strict=False):
        part.copy_(slot[: part.numel()])
