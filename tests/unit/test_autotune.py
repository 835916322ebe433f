"""Without this, AutoTune could chase noise, run away, or come back from a checkpoint with other shares.

Not covered: measuring the times and saving the state (the trainer does both).
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repro.balance.autotune import TuneConfig, TuneState, start, update
from repro.balance.by_cost import vbs_cost
from repro.errors import InputError

WORLD = 8


def run(
    slowness_W: np.ndarray, steps: int, noise: float, seed: int = 0, state: TuneState | None = None
) -> tuple[TuneState, np.ndarray]:
    """Final state, and (step, rank) times, where a rank's cost is exactly its share."""
    rng = np.random.default_rng(seed)
    state, times = state or start(slowness_W.size), []
    for _ in range(steps):
        share_W = state.share_array()
        times.append(share_W * slowness_W * np.exp(noise * rng.standard_normal(slowness_W.size)))
        state = update(state, TuneConfig(), times[-1], share_W)
    return state, np.array(times)


def one_slow(factor: float = 1.5) -> np.ndarray:
    return np.array([factor, *[1.0] * (WORLD - 1)])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_slow_rank_gets_its_share_of_the_work(noise: float) -> None:
    state, times = run(one_slow(), 60, noise)
    wanted = 1 / one_slow()
    assert state.share == pytest.approx(wanted / wanted.sum(), rel=0.03)
    last = times[-20:].mean(axis=0)
    assert last.max() / last.mean() < 1.03 < times[0].max() / times[0].mean()


def test_it_converges_within_twenty_steps_and_then_stays() -> None:
    _, times = run(one_slow(), 40, 0.0)
    excess = times.max(axis=1) / times.mean(axis=1) - 1
    assert (excess[20:] < 0.03).all()
    assert (np.diff(excess) <= 1e-9).all()


def test_noise_alone_moves_no_share() -> None:
    state, _ = run(np.ones(WORLD), 400, 0.02)
    assert state.share == start(WORLD).share


def test_shares_do_not_oscillate_under_noise() -> None:
    state, _ = run(one_slow(), 100, 0.02)
    shares = [state.share[0]]
    for step in range(200):
        state, _ = run(one_slow(), 1, 0.02, seed=1000 + step, state=state)
        shares.append(state.share[0])
    changes = np.diff(shares)
    assert np.ptp(shares) < 0.04 * np.mean(shares)
    assert np.count_nonzero(changes) < 60


def test_it_follows_a_rank_that_recovers() -> None:
    state, _ = run(one_slow(), 60, 0.01)
    state, _ = run(np.ones(WORLD), 100, 0.01, seed=1, state=state)
    assert state.share == pytest.approx([1 / WORLD] * WORLD, rel=0.04)


def test_one_bad_measurement_moves_a_share_by_no_more_than_the_largest_step() -> None:
    state, _ = run(np.ones(WORLD), 10, 0.0)
    after = update(state, TuneConfig(), one_slow(100.0), np.ones(WORLD))
    change = np.array(after.share) / np.array(state.share)
    assert 1 / 1.1 / 1.1 <= change.min() < change.max() <= 1.1 * 1.1


def test_with_real_partitions_of_skewed_lengths() -> None:
    rng = np.random.default_rng(0)
    state = start(4)
    slowness_W = np.array([1.5, 1.0, 1.0, 1.0])
    excess = []
    for _ in range(60):
        cost_S = np.minimum(rng.lognormal(6.5, 1.3, 256), 21_000.0)
        rank_S = vbs_cost(cost_S, cost_S, 4, share_W=state.share_array())
        cost_W = np.bincount(rank_S, weights=cost_S, minlength=4)
        seconds_W = cost_W * slowness_W
        excess.append(seconds_W.max() / seconds_W.mean() - 1)
        state = update(state, TuneConfig(), seconds_W, cost_W)
    assert excess[0] > 0.3 and max(excess[-20:]) < 0.03


def test_the_state_survives_json_and_goes_on_alike() -> None:
    state, _ = run(one_slow(), 17, 0.02)
    restored = TuneState.from_dict(json.loads(json.dumps(state.to_dict())))
    assert restored == state
    assert run(one_slow(), 5, 0.02, seed=3, state=restored)[0] == run(one_slow(), 5, 0.02, seed=3, state=state)[0]


@settings(max_examples=50, deadline=None)
@given(st.lists(arrays(np.float64, 4, elements=st.floats(0, 1e6)), min_size=1, max_size=30))
def test_shares_stay_positive_and_sum_to_one(times: list[np.ndarray]) -> None:
    state = start(4)
    for seconds_W in times:
        state = update(state, TuneConfig(), seconds_W, np.array([1.0, 2.0, 0.0, 1e-9]))
        share_W = state.share_array()
        assert np.isfinite(share_W).all() and share_W.min() >= 0.04 and share_W.sum() == pytest.approx(1)


def test_world_one_is_left_alone() -> None:
    assert update(start(1), TuneConfig(), np.array([2.0]), np.array([1.0])).share == (1.0,)


@pytest.mark.parametrize("seconds", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_bad_times(seconds: list[float]) -> None:
    with pytest.raises(InputError, match="autotune"):
        update(start(2), TuneConfig(), np.array(seconds), np.ones(2))


@pytest.mark.parametrize("raw", [{}, {"version": 2}, {"version": 1, "share": [1.0]}])
def test_a_foreign_state_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(InputError, match="autotune state"):
        TuneState.from_dict(raw)


@pytest.mark.parametrize("field", ["smoothing", "largest_step", "least_share"])
def test_bad_settings(field: str) -> None:
    with pytest.raises(InputError, match=field):
        TuneConfig(**{field: 0.0})
