"""The transport that a recipe names, for one group's collectives."""

from __future__ import annotations

from typing import assert_never

import torch
import torch.distributed as dist

from repro.comm.transport.availability import require
from repro.comm.transport.contract import Transport
from repro.comm.transport.host_ring import HostRing
from repro.comm.transport.process_group import ProcessGroupTransport
from repro.config import Transport as Name


def connect(name: Name, group: dist.ProcessGroup, device: torch.device) -> Transport:
    """`group` itself, or another way between the same ranks. Every rank must call it, in the same order.

    Args:
        group: of all ranks.
        device: where the tensors lie.

    Raises:
        RunError: it cannot be used here.
    """
    require(name)
    match name:
        case "process_group":
            return ProcessGroupTransport(group)
        case "host_ring":
            return HostRing.connect(device)
    assert_never(name)
