"""Reads ahead on a thread, so that reading hides behind compute.

A thread, not a process: reading is copying ranges out of a memory map, NumPy releases the interpreter's lock while it
copies, and a block needs no second copy to reach the trainer. One thread, so blocks come in order without any
bookkeeping, and never a collective: those stay on the main thread, whose order is the same on all ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar, cast

from repro.errors import InputError

Item = TypeVar("Item")
_END = object()


def prefetch(source: Iterator[Item], depth: int = 2) -> Iterator[Item]:
    """The items of `source` in order, up to `depth` of them read ahead.

    What the consumer waits for an item is what reading could not hide. Reading starts with the first item asked for.
    An error of `source` is raised where its item is asked for; closing this iterator ends the thread after the item it
    is at.

    Raises:
        InputError: `depth` below 1.
    """
    if depth < 1:
        raise InputError(f"prefetch depth: must be >= 1, got {depth}")
    return _prefetch(source, depth)


def _prefetch(source: Iterator[Item], depth: int) -> Iterator[Item]:
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")
    try:
        ahead: deque[Future[object]] = deque(pool.submit(next, source, _END) for _ in range(depth))
        while (item := ahead.popleft().result()) is not _END:
            ahead.append(pool.submit(next, source, _END))
            yield cast(Item, item)
    finally:
        pool.shutdown(cancel_futures=True)
