"""Without these, reading ahead could reorder or lose batches, swallow a reader's error, hang when training stops early,
or read the whole data set into memory.

Not covered: how the wait appears in the ledger (tests/distributed/test_reader_wait.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from repro.data.prefetch import prefetch
from repro.errors import InputError


@pytest.mark.parametrize("depth", [1, 2, 7, 1000])
def test_all_items_in_order(depth: int) -> None:
    assert list(prefetch(iter(range(100)), depth)) == list(range(100))


def test_none_is_an_item() -> None:
    assert list(prefetch(iter([None, None]))) == [None, None]


def test_reads_no_further_ahead_than_asked() -> None:
    reached = []
    source = (reached.append(i) or i for i in range(100))
    items = prefetch(source, depth=3)
    for _ in range(5):
        next(items)
    time.sleep(0.05)
    assert len(reached) <= 5 + 3
    items.close()  # type: ignore[attr-defined]


def test_an_error_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("disk gone")

    items = prefetch(source(), depth=4)
    assert next(items) == 1
    with pytest.raises(OSError, match="disk gone"):
        next(items)


def test_closing_early_ends_the_thread() -> None:
    before = threading.active_count()
    items = prefetch(iter(range(10**9)), depth=2)
    next(items)
    assert threading.active_count() == before + 1
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_waiting_is_hidden_behind_work() -> None:
    """Ten reads of 20 ms behind work of 30 ms: only the first read is waited for."""

    def source() -> Iterator[int]:
        for i in range(10):
            time.sleep(0.02)
            yield i

    items, waited = prefetch(source()), 0.0
    for _ in range(10):
        started = time.perf_counter()
        next(items)
        waited += time.perf_counter() - started
        time.sleep(0.03)
    assert waited < 0.12


def test_depth_is_checked_at_once() -> None:
    with pytest.raises(InputError, match="depth"):
        prefetch(iter([]), 0)
