"""Cuts each user's events into ranking requests: a history, then the next 1..16 events as candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.errors import InputError

# N events, U users, D draws (one a candidate event, of which the first few a user are used), R requests


@dataclass(frozen=True, kw_only=True)
class RequestRule:
    """How requests are cut."""

    max_candidates: int = 16
    """A request's candidate count is drawn uniformly from 1..max_candidates."""
    min_history: int = 1
    """A user's first events that are history only, so that no request is without one."""
    first_time: int | None = None
    """Events before this time (ms) are history only; None: all may be candidates."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_candidates", "min_history"):
            if getattr(self, name) < 1:
                raise InputError(f"requests.{name}: must be >= 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
    """Requests of some users, user by user and in time order; (R,) int64 each. Rows count from the users' first."""

    user: np.ndarray
    """Index of the user."""
    time: np.ndarray
    """Milliseconds; that of the first candidate."""
    uih_begin: np.ndarray
    """Row, inclusive: the user's first event."""
    uih_end: np.ndarray
    """Row, exclusive: the user's first event that is not before `time`."""
    candidate_begin: np.ndarray
    """Row of the first candidate; the others follow it."""
    candidate_count: np.ndarray


def cut_requests(time_N: np.ndarray, user_begin: np.ndarray, rule: RequestRule, rng: np.random.Generator) -> Requests:
    """Cut each user's later events into consecutive disjoint requests.

    Args:
        time_N: int64 ms, user by user in the prepared order, ascending in each.
        user_begin: (U + 1,) int64: rows `user_begin[u] .. user_begin[u + 1]` are user u's.
        rule: see `RequestRule`.
        rng: draws candidate counts. Calls for consecutive users with one generator draw what one call for all would.

    The first event at or after the request's time ends the history, also when several events share that time.
    A request left without history is dropped. Draws go user by user in prepared order, so they depend on the log
    and the seed alone.
    """
    begin_U, end_U = user_begin[:-1], user_begin[1:]
    eligible_U = end_U - begin_U - rule.min_history
    if rule.first_time is not None:
        late_before_N = np.concatenate([[0], np.cumsum(time_N >= rule.first_time)])
        eligible_U = np.minimum(eligible_U, late_before_N[end_U] - late_before_N[begin_U])
    eligible_U = np.maximum(eligible_U, 0)

    # A user of m eligible events has at most m requests, so m draws are always enough.
    user_D = np.repeat(np.arange(eligible_U.size), eligible_U)
    draw_D = rng.integers(1, rule.max_candidates, endpoint=True, size=user_D.size)
    drawn_before_D = np.cumsum(draw_D) - draw_D
    first_draw_U = np.cumsum(eligible_U) - eligible_U
    used = np.flatnonzero(eligible_U)
    base_U = np.zeros_like(eligible_U)
    base_U[used] = drawn_before_D[first_draw_U[used]]
    offset_D = drawn_before_D - base_U[user_D]
    kept = offset_D < eligible_U[user_D]
    user_R, offset_R = user_D[kept], offset_D[kept]

    candidate_begin = end_U[user_R] - eligible_U[user_R] + offset_R
    candidate_count = np.minimum(draw_D[kept], eligible_U[user_R] - offset_R)
    uih_begin = begin_U[user_R]
    uih_end = _tie_begin(time_N, begin_U)[candidate_begin]
    whole_R = uih_end > uih_begin
    return Requests(
        user=user_R[whole_R],
        time=time_N[candidate_begin[whole_R]],
        uih_begin=uih_begin[whole_R],
        uih_end=uih_end[whole_R],
        candidate_begin=candidate_begin[whole_R],
        candidate_count=candidate_count[whole_R],
    )


def _tie_begin(time_N: np.ndarray, begin_U: np.ndarray) -> np.ndarray:
    """First row of the same user with the same time, int64 (N,)."""
    is_first_N = np.empty(time_N.size, dtype=bool)
    is_first_N[0] = True
    np.not_equal(time_N[1:], time_N[:-1], out=is_first_N[1:])
    is_first_N[begin_U] = True
    tie_begin: np.ndarray = np.maximum.accumulate(np.where(is_first_N, np.arange(time_N.size), 0))
    return tie_begin
