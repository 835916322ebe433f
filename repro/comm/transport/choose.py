"""The transport that a recipe names, put in the place of process groups.

AllGather and AllToAll of balancing and of prioritized updates go over it; TorchRec's collectives and the dense
AllReduce stay on the main group. Each kind of collective has a transport of its own, as it has a group of its own.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

import torch

from repro.comm.groups import Groups
from repro.comm.transport.availability import require
from repro.comm.transport.contract import Transport
from repro.comm.transport.host_ring import HostRing
from repro.config import Transport as Name

CPU = torch.device("cpu")


def carried_by(name: Name, groups: Groups, device: torch.device) -> Groups:
    """Groups whose `balance`, `ids`, `priority` and `exclusive` are that transport; `host_ring_hidden` leaves
    `priority`, which every step waits for, as it is. Every rank must call it, in the same order as it makes other
    groups. Give what it returns to `let_go` at the end.

    Args:
        device: where tables and embeddings lie.

    Raises:
        RunError: it cannot be used here.
    """
    match name:
        case "process_group":
            return groups
        case "host_ring" | "host_ring_hidden":
            require("host_ring")
            return dataclasses.replace(
                groups,
                balance=HostRing.connect(CPU),
                ids=HostRing.connect(CPU),
                priority=HostRing.connect(device) if name == "host_ring" else groups.priority,
                exclusive=HostRing.connect(device),
            )
    assert_never(name)


def let_go(groups: Groups) -> None:
    """Close the transports among them; process groups stay. Every rank must call it, with nothing in flight."""
    for way in (groups.balance, groups.ids, groups.priority, groups.exclusive):
        if isinstance(way, Transport):
            way.close()
