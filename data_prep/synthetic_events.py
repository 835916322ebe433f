"""Makes the events of a synthetic log, block of users by block of users, in the order of the prepared data set.

Only one value a user is in memory for all users, so a log may be larger than memory. Events come out sorted by (user,
time), users by their first event: nothing has to be sorted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from data_prep.event_log import EventLog

if TYPE_CHECKING:
    from data_prep.synthetic import SyntheticLog

# U users (of all, or of a block), N events of a block, S sessions, K stretches: each user's history, then its window

DAY_MS = 86_400_000
ACTION_CUTS = (-2.0, 0.0, 2.0)
"""Engagement (a log-odds) at which the action goes from skip to short, long and like; from 0 up the label is 1."""

_BLOCK_EVENTS = 1 << 20
_LARGEST_EVENT_SHARE = 0.5
"""Of a stretch of time, the most that sessions may fill; what lies between sessions fills the rest."""
_ITEM_EFFECTS = 1 << 16
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class UserPlan:
    """What is decided of every user before any event is made; users in the order of their first event."""

    history_U: np.ndarray
    """Events before the request window, int64."""
    window_U: np.ndarray
    """Events in it, int64, >= 1."""
    first_ms_U: np.ndarray
    """Time of the first event, int64, ascending."""

    @property
    def events(self) -> int:
        """Events in all."""
        return int(self.history_U.sum() + self.window_U.sum())


def plan_users(knobs: SyntheticLog) -> UserPlan:
    """Lengths, activity and first events of all users.

    Lengths are taken at evenly spaced quantiles and shuffled, not drawn: the few longest histories decide how uneven
    ranks are, and with draws they would be a matter of the seed.
    """
    rng = np.random.default_rng(knobs.seed)
    heavy = round(knobs.heavy_share * knobs.users)
    length_U = np.concatenate(
        [
            _lognormal_quantiles(knobs.length_mu, knobs.length_sigma, knobs.users - heavy),
            _lognormal_quantiles(knobs.heavy_mu, knobs.heavy_sigma, heavy),
        ]
    )
    length_U = rng.permutation(np.clip(length_U, knobs.length_floor, knobs.length_cap))
    mean_window = knobs.requests_a_user * (knobs.max_candidates + 1) / 2
    weight_U = length_U**knobs.activity
    window_U = np.floor(mean_window * weight_U / weight_U.mean() + rng.random(knobs.users))
    history_U = np.rint(length_U).astype(np.int64)

    # The earliest of the user's sessions, if those are uniform in time.
    sessions_U = np.maximum(history_U / knobs.session_events, 1.0)
    first_ms_U = knobs.window_ms * -np.expm1(np.log1p(-rng.random(knobs.users)) / sessions_U)
    order_U = np.argsort(first_ms_U, kind="stable")
    return UserPlan(
        history_U=history_U[order_U],
        window_U=np.maximum(window_U, 1).astype(np.int64)[order_U],
        first_ms_U=first_ms_U[order_U].astype(np.int64),
    )


def parts(knobs: SyntheticLog) -> Iterator[EventLog]:
    """The log in parts of whole users, about a million events each; the same knobs give the same log."""
    plan = plan_users(knobs)
    item_effects = np.random.default_rng([knobs.seed, 1]).normal(0.0, knobs.item_log_odds_sd, _ITEM_EFFECTS)
    before_U = np.cumsum(plan.history_U + plan.window_U)
    begin = 0
    while begin < knobs.users:
        done = before_U[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(before_U, done + _BLOCK_EVENTS, side="right")))
        rng = np.random.default_rng([knobs.seed, 2, begin])
        yield _block(knobs, plan, slice(begin, end), item_effects.astype(np.float32), rng)
        begin = end


def _block(
    knobs: SyntheticLog, plan: UserPlan, users: slice, item_effects: np.ndarray, rng: np.random.Generator
) -> EventLog:
    size_K = np.stack([plan.history_U[users], plan.window_U[users]], axis=1).reshape(-1)
    size_U = size_K[::2] + size_K[1::2]
    starts_N = rng.random(int(size_K.sum()), dtype=np.float32) < 1.0 / knobs.session_events
    starts_N[np.cumsum(size_K) - size_K] = True
    begin_S = np.flatnonzero(starts_N)
    size_S = np.diff(begin_S, append=starts_N.size)
    user_N = np.repeat(np.arange(users.start, users.start + size_U.size, dtype=np.int32), size_U)
    time_N = _times(knobs, plan.first_ms_U[users], size_K, starts_N, rng)

    favourite_U = rng.integers(knobs.genres, size=size_U.size, dtype=np.int32)
    favourite_S = favourite_U[user_N[begin_S] - users.start]
    genre_S = np.where(rng.random(begin_S.size) < knobs.preferred_share, favourite_S, _genres(knobs, begin_S.size, rng))
    genre_N = np.repeat(genre_S, size_S)
    strays = np.flatnonzero(rng.random(genre_N.size, dtype=np.float32) >= knobs.session_focus)
    genre_N[strays] = _genres(knobs, strays.size, rng)

    item_N = _items(knobs, genre_N, time_N, rng)
    author_N = (item_N.view(np.uint32) * np.uint32(2_654_435_761) >> np.uint32(1)) % np.uint32(knobs.authors)
    engagement_N = _logistic_noise(item_N.size, rng)
    engagement_N += item_effects[item_N & (_ITEM_EFFECTS - 1)]
    engagement_N += np.float32(knobs.base_log_odds)
    engagement_N += np.float32(knobs.preference_log_odds) * (genre_N == np.repeat(favourite_U, size_U))
    action_N = np.zeros(item_N.size, dtype=np.int32)
    for cut in ACTION_CUTS:
        action_N += engagement_N >= cut
    return EventLog(
        user=user_N,
        item=item_N,
        time=time_N,
        label=(engagement_N >= 0).astype(np.float32),
        attributes={**({"genre": genre_N} if knobs.genre_feature else {}), "author": author_N.view(np.int32)},
        attribute_vocabulary={**({"genre": knobs.genres} if knobs.genre_feature else {}), "author": knobs.authors},
        actions={"action": action_N},
        action_vocabulary={"action": len(ACTION_CUTS) + 1},
    )


def _times(
    knobs: SyntheticLog, first_ms_U: np.ndarray, size_K: np.ndarray, starts_N: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Event times, int64 ms (N,), ascending in each stretch: a history begins at the user's first event. Sessions begin
    as uniform draws would, but come sorted: their gaps are exponential draws, normalized."""
    window_ms = round(knobs.days * DAY_MS) - knobs.window_ms
    visit_ms = window_ms if knobs.visit_days is None else round(knobs.visit_days * DAY_MS)
    visit_U = knobs.window_ms + rng.integers(window_ms - visit_ms + 1, size=first_ms_U.size)
    start_K = np.stack([first_ms_U, visit_U], axis=1).reshape(-1)
    span_K = np.stack([knobs.window_ms - first_ms_U, np.full_like(first_ms_U, visit_ms)], axis=1).reshape(-1)
    begin_K = np.cumsum(size_K) - size_K

    gap_N = rng.standard_exponential(starts_N.size, dtype=np.float32).astype(np.float64)
    gap_N[begin_K[::2]] = 0.0
    inside_N = np.where(starts_N, 0.0, gap_N)
    inside_K = np.add.reduceat(inside_N, begin_K)
    between_K = np.add.reduceat(gap_N, begin_K) - inside_K + rng.standard_exponential(size_K.size)
    event_ms_K = np.minimum(knobs.event_gap_s * 1000.0, _LARGEST_EVENT_SHARE * span_K / np.maximum(inside_K, 1e-9))
    session_ms_K = (span_K - event_ms_K * inside_K) / between_K
    gap_N *= np.where(starts_N, np.repeat(session_ms_K, size_K), np.repeat(event_ms_K, size_K))
    elapsed_N = np.cumsum(gap_N)
    offset_K = start_K - elapsed_N[begin_K] + gap_N[begin_K]
    time_N = (elapsed_N + np.repeat(offset_K, size_K)).astype(np.int64)
    # Rounding must not carry an event past its stretch, whose last moment is the next one's first.
    return np.minimum(time_N, np.repeat(start_K + span_K - 1, size_K))


def _items(knobs: SyntheticLog, genre_N: np.ndarray, time_N: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Item ids 0..items-1, int32 (N,): k-th most popular of a genre with weight about k ** -exponent.

    Drawn by inverting the continuous law on [1/2, places + 1/2], which needs no table: within 10 % of Zipf at the first
    place, closer at all others.
    """
    places = knobs.items // knobs.genres
    power = 1.0 - knobs.popularity_exponent
    draw_N = rng.random(genre_N.size)
    if abs(power) < 1e-9:
        draw_N *= np.log(2 * places + 1)
        np.exp(draw_N, out=draw_N)
        draw_N *= 0.5
    else:
        low, high = 0.5**power, (places + 0.5) ** power
        draw_N *= high - low
        draw_N += low
        np.power(draw_N, 1.0 / power, out=draw_N)
    draw_N -= 0.5
    place_N = np.minimum(draw_N.astype(np.int64), places - 1)
    if knobs.popularity_days is not None:
        # Each place changes hands at its own moments; the next item comes from far down the order.
        turn_N = (time_N / (knobs.popularity_days * DAY_MS) + place_N * _GOLDEN % 1.0).astype(np.int64)
        place_N = (place_N + turn_N * (int(_GOLDEN * places) | 1)) % places
    item_N: np.ndarray = (place_N * knobs.genres + genre_N).astype(np.int32)
    return item_N


def _genres(knobs: SyntheticLog, size: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(knobs.genres, size=size, dtype=np.int32)


def _logistic_noise(size: int, rng: np.random.Generator) -> np.ndarray:
    uniform = rng.random(size, dtype=np.float32)
    np.clip(uniform, 1e-6, 1 - 1e-6, out=uniform)
    noise: np.ndarray = np.log(uniform) - np.log1p(-uniform)
    return noise


def _lognormal_quantiles(mu: float, sigma: float, size: int) -> np.ndarray:
    """`size` evenly spaced quantiles, float64. Beyond a thousand from either end they are interpolated."""
    if not size:
        return np.zeros(0)
    quantile = (np.arange(size) + 0.5) / size
    edge = np.unique(
        np.concatenate([np.arange(min(size, 1000)), np.linspace(0, size - 1, min(size, 1000)).astype(int)])
    )
    known = np.unique(np.concatenate([edge, size - 1 - edge]))
    normal = NormalDist()
    score = np.interp(quantile, quantile[known], [normal.inv_cdf(q) for q in quantile[known].tolist()])
    return np.exp(mu + sigma * score)
