"""Without these a model could train on the future, or on events that are not its user's.

Random small logs go through the writer and the reader and are compared with a plain Python account of what a request
is. Logs larger than what is in memory at once: test_prep_sort.py. Not covered: speed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prep_logs import ITEM_BASE, ITEM_STEP, prepare_log, small_log

from data_prep.requests import RequestRule, Requests, cut_requests
from data_prep.user_hash import hash_users
from repro.data.dataset import PreparedDataset
from repro.errors import InputError

EVENTS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 12)), min_size=1, max_size=60)
"""(user, time): few users and times, so single-event users, equal times and disorder all occur."""


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, min_history=st.integers(1, 3), late=st.sampled_from([None, 4]), cap=st.integers(1, 8))
def test_requests_are_what_the_log_says(
    events: list[tuple[int, int]], min_history: int, late: int | None, cap: int
) -> None:
    user, time = [event[0] for event in events], [event[1] for event in events]
    log = small_log(user, time)
    rule = RequestRule(max_candidates=4, min_history=min_history, first_time=late)
    with tempfile.TemporaryDirectory() as folder:
        data_root = Path(folder) / "data"
        try:
            dataset = PreparedDataset.open(prepare_log(log, data_root, rule=rule))
        except InputError as error:
            assert "no request" in str(error)
            _check_candidates({}, user, time, rule)
            return
        key = bytes.fromhex((Path(folder) / "key").read_text())

    user_of_hash = dict(zip(hash_users([1, 2, 3, 4], key).tolist(), [1, 2, 3, 4], strict=True))
    item_rows = (np.unique(log.item) - ITEM_BASE) // ITEM_STEP
    block = dataset.read(np.arange(len(dataset)), cap)
    uih_rows = np.split(item_rows[block.uih["item"]], np.cumsum(block.uih_lengths)[:-1])
    candidate_rows = np.split(item_rows[block.candidate["item"]], np.cumsum(block.candidate_counts)[:-1])
    seen: dict[int, list[int]] = {}
    for request in range(len(dataset)):
        of = user_of_hash[int(dataset.request_user[request])]
        now = int(block.request_time[request])
        history = [row for row in _sorted_rows(user, time, of) if time[row] < now]
        assert uih_rows[request].tolist() == history[-cap:]
        assert 1 <= len(candidate_rows[request]) <= rule.max_candidates
        assert time[candidate_rows[request][0]] == now
        seen.setdefault(of, []).extend(candidate_rows[request].tolist())
    _check_candidates(seen, user, time, rule)

    uih, candidates = np.concatenate(uih_rows), np.concatenate(candidate_rows)
    assert block.uih_time.tolist() == log.time[uih].tolist()
    assert block.uih["action"].tolist() == log.actions["action"][uih].tolist()
    assert block.label.tolist() == log.label[candidates].tolist()
    assert list(block.candidate) == ["item"]
    assert np.all(np.diff(block.request_time) >= 0)


def _sorted_rows(user: list[int], time: list[int], of: int) -> list[int]:
    return sorted((row for row in range(len(user)) if user[row] == of), key=lambda row: (time[row], row))


def _check_candidates(seen: dict[int, list[int]], user: list[int], time: list[int], rule: RequestRule) -> None:
    """A user's eligible events are candidates once, in order, but for leading requests that had no history."""
    assert set(seen) <= set(user)
    for of in set(user):
        rows = _sorted_rows(user, time, of)
        first_time = time[rows[0]]
        eligible = [row for row in rows[rule.min_history :] if rule.first_time is None or time[row] >= rule.first_time]
        kept = seen.get(of, [])
        dropped = eligible[: len(eligible) - len(kept)]
        assert dropped + kept == eligible
        assert not dropped or time[dropped[0]] == first_time
        # The last of the dropped requests began at the user's first time, too.
        later = [row for row in dropped if time[row] > first_time]
        assert len(later) < rule.max_candidates


def test_candidate_counts_are_uniform() -> None:
    requests = _cut_one_user(200_000)
    counts = np.bincount(requests.candidate_count, minlength=17)
    assert counts[0] == 0
    assert counts[1:].min() > 0.9 * counts[1:].mean()
    assert requests.candidate_count.sum() == 199_999


def test_other_seeds_cut_otherwise() -> None:
    first, again, other = (_cut_one_user(300, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.candidate_count, again.candidate_count)
    assert not np.array_equal(first.candidate_count, other.candidate_count)


def _cut_one_user(events: int, seed: int = 0) -> Requests:
    return cut_requests(np.arange(events), np.array([0, events]), RequestRule(), np.random.default_rng(seed))


@pytest.mark.parametrize("field", ["max_candidates", "min_history"])
def test_a_rule_below_one_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=field):
        RequestRule(**{field: 0})
