"""Without this, the staging pool could grow past its cap, hand one chunk to two users, or block for ever when it is
exhausted.

Not covered: page-locked memory and copies of a GPU, which need one.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

from repro.comm.transport.stages import Lease
from repro.device.copies import DirectCopies, StagedCopies, copies_for
from repro.device.pinned import PinnedPool


def test_chunks_are_disjoint_reused_and_capped() -> None:
    pool = PinnedPool(8, 3, pin=False, timeout_seconds=0.05)
    taken = [pool.take() for _ in range(3)]
    assert pool.cap_bytes == 24 and pool.chunks_in_use == 3
    assert len({chunk.data_ptr() for chunk in taken}) == 3
    for number, chunk in enumerate(taken):
        chunk.fill_(number)
    assert [chunk.tolist() for chunk in taken] == [[number] * 8 for number in range(3)]
    with pytest.raises(RuntimeError, match=r"all 3 chunks of the pinned pool stayed in use for 0\.05 s"):
        pool.take()
    place = taken[1].data_ptr()
    pool.give(taken[1])
    assert pool.take().data_ptr() == place and pool.peak_chunks == 3


def test_take_waits_for_a_chunk() -> None:
    pool = PinnedPool(8, 1, pin=False, timeout_seconds=5)
    chunk = pool.take()
    threading.Timer(0.05, lambda: pool.give(chunk)).start()
    assert pool.take() is chunk


def test_closing_wakes_whoever_waits() -> None:
    pool = PinnedPool(8, 1, pin=False, timeout_seconds=60)
    pool.take()
    threading.Timer(0.05, pool.close).start()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="closed"):
        pool.take()
    assert time.monotonic() - began < 5


def test_many_threads_never_share_a_chunk() -> None:
    pool = PinnedPool(64, 3, pin=False, timeout_seconds=10)
    mixed = []

    def work(number: int) -> None:
        for _ in range(200):
            chunk = pool.take()
            chunk.fill_(number)
            if not bool((chunk == number).all()):
                mixed.append(number)
            pool.give(chunk)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not mixed and pool.chunks_in_use == 0 and pool.peak_chunks <= 3


def test_a_lease_ends_with_its_last_user() -> None:
    pool = PinnedPool(8, 1, pin=False, timeout_seconds=1)
    lease = Lease(pool, users=2)
    lease.done()
    assert pool.chunks_in_use == 1
    lease.done()
    assert pool.chunks_in_use == 0


def test_host_tensors_are_not_staged() -> None:
    assert isinstance(copies_for(torch.device("cpu"), 1.0), DirectCopies)
    assert not DirectCopies.staged and StagedCopies.staged
