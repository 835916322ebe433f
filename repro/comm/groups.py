"""Process groups of a run: made, named and torn down in one place.

Balancing has a group of its own: one issue order on all ranks within a group, and no small collective queued behind a
large one of another kind. It moves host memory, so it is gloo whatever the device is.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from repro.comm.transport.contract import Transport
from repro.device import Device

TIMEOUT = datetime.timedelta(minutes=5)
"""A collective that takes longer than this has lost a rank."""


Way = dist.ProcessGroup | Transport
"""What moves collectives that do not add."""


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank."""

    rank: int
    world: int
    local_rank: int
    main: dist.ProcessGroup
    """TorchRec's collectives and the dense AllReduce."""
    balance: Way
    """The sample exchange, on host memory (gloo)."""
    ids: Way
    """Ids and collision masks of prioritized updates, on host memory (gloo)."""
    priority: Way
    """Collision rows of prioritized updates."""
    exclusive: Way
    """Exclusive rows of prioritized updates."""


@contextmanager
def process_groups(device: Device, timeout: datetime.timedelta = TIMEOUT) -> Iterator[Groups]:
    """Join the group that torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) describe; leave it at the end."""
    dist.init_process_group(backend=device.backend, timeout=timeout)
    try:
        main = dist.group.WORLD
        assert main is not None
        yield Groups(
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            main=main,
            balance=dist.new_group(backend="gloo", timeout=timeout),
            ids=dist.new_group(backend="gloo", timeout=timeout),
            priority=dist.new_group(backend=device.backend, timeout=timeout),
            exclusive=dist.new_group(backend=device.backend, timeout=timeout),
        )
    finally:
        dist.destroy_process_group()
