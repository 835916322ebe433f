"""Without this, a rank that dies or stalls could leave the others hanging in a ring, or have them blame each other.

Real gloo connections; ranks that really exit, are really killed, and really sleep. Not covered: a network that loses
packets, and a GPU whose copies never end.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import repro.comm.faults
from repro.comm.faults import blame
from repro.comm.groups import Groups
from repro.comm.transport.host_ring import HostRing
from repro.device import Device
from repro.device.copies import StagedCopies
from repro.errors import RunError
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

CPU = torch.device("cpu")
TIMEOUT_SECONDS = 5
TIMEOUT = timedelta(seconds=TIMEOUT_SECONDS)
PATIENCE = 1.5
LOST = 2


def _lost(groups: Groups, device: Device, how: str, collective: str) -> tuple[str, float]:
    """Rank 2 leaves before, or a large collective into, the ring. What the others say, and after how long."""
    repro.comm.faults.PATIENCE_SECONDS = PATIENCE
    ring = HostRing.connect(CPU, timeout=TIMEOUT, copies=StagedCopies())
    world = groups.world
    ring.all_gather(torch.empty(world), torch.ones(1)).wait()
    dist.barrier()
    if groups.rank == LOST and how == "exits in mid-ring":
        _start(ring, collective)
        time.sleep(0.05)
        os._exit(0)
    if groups.rank == LOST:
        time.sleep(2 * TIMEOUT_SECONDS)
        return "", 0.0
    began = time.monotonic()
    with pytest.raises(RunError) as raised, blame("the test", groups.main):
        for _ in range(20):
            _start(ring, collective).wait()
    seconds = time.monotonic() - began
    with pytest.raises(RuntimeError, match="host_ring: "):
        _start(ring, collective).wait()
    ring.close()
    if how == "stalls" or groups.rank == 0:  # the store, which torchrun's agent holds in a real run, is rank 0's here
        time.sleep(max(0.0, 2 * TIMEOUT_SECONDS + 1 - seconds))
    return str(raised.value), seconds


def _start(ring: HostRing, collective: str) -> Any:
    size = 1 << 20
    if collective == "all_gather":
        return ring.all_gather(torch.empty(size * ring.world), torch.ones(size))
    return ring.all_to_all_single(torch.empty(size * ring.world), torch.ones(size * ring.world))


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
def test_a_rank_that_exits_in_mid_ring_is_named_by_all_others(collective: str) -> None:
    """Also by rank 0, which in a ring of four has no message to or from it."""
    ranks = run_ranks(_lost, "exits in mid-ring", collective, world=4)
    for rank in (0, 1, 3):
        message, seconds = ranks[rank]
        assert message == "the test: rank 2 died or stalled and did not take part"
        assert seconds < TIMEOUT_SECONDS + PATIENCE + 1


@pytest.mark.parametrize("collective", ["all_gather", "all_to_all"])
def test_a_rank_that_stalls_is_named_within_the_timeout(collective: str) -> None:
    ranks = run_ranks(_lost, "stalls", collective, world=4)
    for rank in (0, 1, 3):
        message, seconds = ranks[rank]
        assert message == "the test: rank 2 died or stalled and did not take part"
        assert seconds < TIMEOUT_SECONDS + PATIENCE + 2


def _cannot_free(groups: Groups, device: Device) -> str:
    """Someone keeps the chunks of rank 0's pool: it and its peers end with the reason, not with a hang. Rank 1 would
    wait longer by itself."""
    repro.comm.faults.PATIENCE_SECONDS = PATIENCE
    ring = HostRing.connect(CPU, timeout=timedelta(seconds=2 + 10 * groups.rank), copies=StagedCopies())
    if groups.rank == 0:
        pool = ring.receive_pool
        while pool.chunks_in_use * ring.chunk_bytes < pool.cap_bytes:
            pool.take()
    with pytest.raises(RuntimeError) as raised:
        _start(ring, "all_to_all").wait()
    ring.close()
    dist.barrier()
    return str(raised.value)


def test_an_exhausted_pool_is_an_error_after_the_timeout() -> None:
    messages = run_ranks(_cannot_free, world=2)
    assert messages[0] == "host_ring: all 6 chunks of the pinned pool stayed in use for 2 s"
    assert messages[1].startswith("host_ring: "), "it notices that rank 0 closed its connections"


def _closed_in_flight(groups: Groups, device: Device) -> str:
    ring = HostRing.connect(CPU, timeout=timedelta(seconds=30))
    if groups.rank == 1:
        dist.barrier()
        ring.close()
        return ""
    handle = _start(ring, "all_gather")
    began = time.monotonic()
    ring.close()
    assert time.monotonic() - began < 10
    with pytest.raises(RuntimeError) as raised:
        handle.wait()
    dist.barrier()
    return str(raised.value)


def test_closing_ends_what_is_in_flight() -> None:
    assert "closed with a collective in flight" in run_ranks(_closed_in_flight, world=2)[0]
