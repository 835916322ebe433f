"""Point-to-point messages of host memory over gloo, with a connection for each direction of each pair."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

TAG = 0


@dataclass(frozen=True)
class GlooLink:
    """Messages between ranks over two gloo groups. gloo delivers those of one pair, group and tag in order."""

    rank: int
    up: dist.ProcessGroup
    down: dist.ProcessGroup

    def send(self, chunk: torch.Tensor, peer: int) -> dist.Work:
        """Start to send."""
        return (self.up if peer > self.rank else self.down).send([chunk], peer, TAG)

    def receive(self, chunk: torch.Tensor, peer: int) -> dist.Work:
        """Start to receive."""
        return (self.down if peer > self.rank else self.up).recv([chunk], peer, TAG)

    def cut(self) -> None:
        """Close all connections, so that whoever waits here or at the other end fails at once. gloo has no call for it,
        but does it when a receive times out (gloo/transport/tcp/unbound_buffer.cc)."""
        for group in (self.up, self.down):
            for peer in range(group.size()):
                if peer != self.rank:
                    with suppress(RuntimeError):
                        group.recv([torch.empty(1, dtype=torch.uint8)], peer, TAG + 1).wait(timedelta(milliseconds=1))
