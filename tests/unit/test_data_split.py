"""Without these, training could see what has not happened yet: an event at or after the request that reads it, or a
request of the evaluation's time. And a run that resumes could get other batches, or wait for the batches before.

The property runs over random logs with many equal times. Not covered: data sets larger than memory.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prep_logs import prepare_log, small_log, some_log

from data_prep import sources
from repro.data.dataset import PreparedDataset
from repro.errors import InputError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    root = tmp_path_factory.mktemp("tiny")
    return PreparedDataset.open(sources.prepare("tiny", root / "data", key_path=root / "key", log=lambda _: None))


@given(
    events=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 12)), min_size=8, max_size=60),
    eval_share=st.floats(0.05, 0.95),
    gap_ms=st.integers(0, 5),
    cap=st.integers(1, 10),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_reads_the_future(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int]], eval_share: float, gap_ms: int, cap: int
) -> None:
    users, times = zip(*events, strict=True)
    try:
        folder = prepare_log(small_log(list(users), list(times)), tmp_path_factory.mktemp("log") / "data")
    except InputError:
        return  # no user has an event and then a later one
    dataset = PreparedDataset.open(folder)
    block = dataset.read(np.arange(len(dataset)), cap)
    assert np.all(block.uih_time < np.repeat(block.request_time, block.uih_lengths))
    try:
        split = dataset.split_by_time(eval_share, gap_ms)
    except InputError:
        return  # all at one moment
    train, evaluation = split
    assert train.request_time.max() + gap_ms < evaluation.request_time.min() or gap_ms == 0
    assert train.request_time.max() < evaluation.request_time.min()
    seen = train.read(np.arange(len(train)), cap)
    assert np.all(seen.uih_time < evaluation.request_time.min())


def test_the_parts_are_the_whole(tiny: PreparedDataset) -> None:
    train, evaluation = tiny.split_by_time(0.2)
    assert len(train) + len(evaluation) == len(tiny)
    assert len(evaluation) == pytest.approx(0.2 * len(tiny), abs=3)
    for part, rows in ((train, np.arange(9)), (evaluation, np.arange(len(evaluation) - 9, len(evaluation)))):
        block = part.read(rows, 50)
        whole = tiny.read(block.request_id, 50)
        for name in ("request_id", "request_time", "uih_lengths", "candidate_counts", "uih_time", "label"):
            assert np.array_equal(getattr(block, name), getattr(whole, name)), name
        assert np.array_equal(block.uih["item"], whole.uih["item"])
        assert np.array_equal(block.candidate["author"], whole.candidate["author"])
    assert evaluation.read(np.array([0]), 5).request_id[0] == len(train)


def test_a_part_can_be_split_again(tiny: PreparedDataset) -> None:
    _, later = tiny.split_by_time(0.5)
    _, last = later.split_by_time(0.5)
    assert last.read(np.array([len(last) - 1]), 5).request_id[0] == len(tiny) - 1
    assert last.request_time[0] == tiny.request_time[len(tiny) - len(last)]


def test_the_gap_leaves_out_requests_whose_labels_come_late(tiny: PreparedDataset) -> None:
    day = 86_400_000
    near, far = tiny.split_by_time(0.2), tiny.split_by_time(0.2, gap_ms=day)
    assert len(near.evaluation) == len(far.evaluation)
    assert 0 < len(far.train) < len(near.train)
    assert far.train.request_time.max() < far.evaluation.request_time.min() - day


@pytest.mark.parametrize(("share", "gap"), [(0.0, 0), (1.0, 0), (-1.0, 0), (0.5, -1), (0.5, 10**15), (1 - 1e-9, 0)])
def test_splits_that_leave_nothing(tiny: PreparedDataset, share: float, gap: int) -> None:
    with pytest.raises(InputError, match="split"):
        tiny.split_by_time(share, gap)


def test_a_rank_starts_anywhere_at_once(tmp_path: Path) -> None:
    """Opening and the first read at the end of the data take milliseconds, also right after other batches."""
    folder = prepare_log(some_log(events=200_000, users=50), tmp_path / "data")
    in_order = PreparedDataset.open(folder)
    last = in_order.global_batches(64) - 1
    expected = [in_order.read(in_order.rank_rows(t, 64, 3, 8), 5_000) for t in range(last + 1)][-1]
    began = time.perf_counter()
    fresh = PreparedDataset.open(folder)
    block = fresh.read(fresh.rank_rows(last, 64, 3, 8), 5_000)
    assert time.perf_counter() - began < 0.5
    assert np.array_equal(block.request_id, expected.request_id)
    assert np.array_equal(block.uih["item"], expected.uih["item"])
