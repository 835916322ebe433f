"""Finds the knobs of a prepared data set, so that a synthetic log looks like it.

What is fitted, and to what: lengths (a lognormal) to the quantiles of UIH length, popularity (a Zipf exponent) to the
Gini of items, candidates to the most there are, requests a user to their mean, activity to its slope, labels to their
rate. All else keeps the value it has in the knobs one starts from. How close the result is must be measured on the
prepared set.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass

import numpy as np

from data_prep import synthetic_events
from data_prep.synthetic import SyntheticLog

# U users, R requests, Q quantiles, V items

_SEARCH_USERS = 10_000
_LABEL_USERS = 2_000
_GENRES = (50, 10, 1)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Statistics of the data set to be matched; no id of anyone."""

    users: int
    """Those with a request."""
    requests_a_user: float
    """Mean."""
    activity: float
    """Slope of ln(requests of a user) against ln(their mean UIH length)."""
    length_quantiles: np.ndarray
    """UIH length of requests at evenly spaced quantiles from 0 to 1, float (Q,)."""
    most_candidates: int
    """Of any request."""
    positive_share: float
    """Of labels."""
    events: int
    items: int
    """Distinct ones that occur."""
    item_gini: float
    """Gini coefficient of the events of items that occur."""
    days: float
    """From the first request to the last."""


def fit(target: Target, start: SyntheticLog, name: str) -> SyntheticLog:
    """Knobs of a log called `name` that is like `target`."""
    genres = next(genres for genres in _GENRES if target.items >= 10 * genres or genres == 1)
    days = max(target.days, 1e-3)
    knobs = dataclasses.replace(
        start,
        name=name,
        users=target.users,
        length_floor=1,
        length_cap=max(1, round(target.length_quantiles[-1])),
        heavy_share=0.0,
        days=2 * days,
        request_days=days,
        requests_a_user=target.requests_a_user,
        activity=float(np.clip(target.activity, 0.0, 1.5)),
        max_candidates=target.most_candidates,
        items=target.items,
        genres=genres,
        popularity_days=None,
    )
    knobs = _fit_lengths(knobs, target)
    knobs = dataclasses.replace(knobs, popularity_exponent=_exponent(knobs, target))
    return _fit_labels(knobs, target)


def _fit_lengths(knobs: SyntheticLog, target: Target) -> SyntheticLog:
    """Pattern search for the mean and spread of ln(length) that bring the quantiles closest."""
    few = dataclasses.replace(knobs, users=min(knobs.users, _SEARCH_USERS))
    wanted_Q = np.log(np.maximum(target.length_quantiles, 1.0))

    def distance(mu: float, sigma: float) -> float:
        length_R = _request_lengths(dataclasses.replace(few, length_mu=mu, length_sigma=sigma))
        found_Q = np.quantile(np.log(length_R), np.linspace(0, 1, wanted_Q.size))
        return float(np.abs(found_Q - wanted_Q).mean())

    mu, sigma, step = float(wanted_Q.mean()), max(float(wanted_Q.std()), 0.1), 0.5
    best = distance(mu, sigma)
    while step > 0.01:
        around = [(mu + step * a, max(0.0, sigma + step * b)) for a, b in itertools.product((-1, 0, 1), repeat=2)]
        closest = min(around, key=lambda point: distance(*point))
        if distance(*closest) < best:
            mu, sigma = closest
            best = distance(mu, sigma)
        else:
            step /= 2
    return dataclasses.replace(knobs, length_mu=mu, length_sigma=sigma)


def _request_lengths(knobs: SyntheticLog) -> np.ndarray:
    """UIH length of each request of a log, without making its events: candidates as often as they are on average."""
    plan = synthetic_events.plan_users(knobs)
    mean = (knobs.max_candidates + 1) / 2
    requests_U = np.ceil(plan.window_U / mean).astype(np.int64)
    before_R = np.arange(int(requests_U.sum())) - np.repeat(np.cumsum(requests_U) - requests_U, requests_U)
    lengths: np.ndarray = np.repeat(plan.history_U, requests_U) + before_R * mean
    return lengths


def _exponent(knobs: SyntheticLog, target: Target) -> float:
    """Zipf exponent at which the items that occur have the wanted Gini, by bisection; 0 or 3 when out of reach."""
    place_V = np.arange(knobs.items) // knobs.genres + 1.0

    def gini(exponent: float) -> float:
        weight_V = place_V**-exponent
        count_V = np.random.default_rng(knobs.seed).poisson(target.events * weight_V / weight_V.sum())
        return _gini(count_V[count_V > 0])

    low, high = 0.0, 3.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if gini(middle) < target.item_gini else (low, middle)
    return (low + high) / 2


def _gini(count_D: np.ndarray) -> float:
    size, ascending_D = count_D.size, np.sort(count_D)
    if not size:
        return 0.0
    return float(2 * (np.arange(1, size + 1) * ascending_D).sum() / (size * ascending_D.sum()) - (size + 1) / size)


def _fit_labels(knobs: SyntheticLog, target: Target) -> SyntheticLog:
    """Shift the base log-odds until a part of the log has the wanted rate of ones."""
    wanted = _logit(target.positive_share)
    for _ in range(4):
        few = dataclasses.replace(knobs, users=min(knobs.users, _LABEL_USERS))
        rate = float(next(synthetic_events.parts(few)).label.mean())
        knobs = dataclasses.replace(knobs, base_log_odds=knobs.base_log_odds + wanted - _logit(rate))
    return knobs


def _logit(share: float) -> float:
    share = min(max(share, 1e-4), 1 - 1e-4)
    return math.log(share / (1 - share))
