"""Without this, a partition could lose or double samples, or deal them unevenly, and every balancing result with it.

Not covered: moving the samples (tests/distributed) and what balance gains (simulated and measured runs).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repro.balance.partition import assign, identity
from repro.balance.zigzag import fbs
from repro.errors import InputError

lengths = arrays(np.int64, st.integers(0, 200), elements=st.integers(0, 21_000))
worlds = st.integers(1, 17)


def test_identity_is_what_independent_readers_deliver() -> None:
    assert identity(np.array([5, 5, 5, 5, 5]), 2).tolist() == [0, 1, 0, 1, 0]


def test_fbs_deals_in_zig_zag_longest_first() -> None:
    # Positions 0..8 of the sorted batch go to ranks 0 1 2 2 1 0 0 1 2.
    assert fbs(np.arange(90, 0, -10), 3).tolist() == [0, 1, 2, 2, 1, 0, 0, 1, 2]
    assert fbs(np.array([9, 1, 8, 2]), 2).tolist() == [0, 0, 1, 1]


def test_fbs_keeps_the_order_of_equal_lengths() -> None:
    assert fbs(np.full(6, 7), 2).tolist() == [0, 1, 1, 0, 0, 1]


@settings(deadline=None)
@given(lengths, worlds)
def test_fbs_gives_every_rank_the_same_number_of_samples(lengths_S: np.ndarray, world: int) -> None:
    counts = np.bincount(fbs(lengths_S, world), minlength=world)
    assert counts.sum() == lengths_S.size
    assert counts.max() - counts.min() <= 1


@settings(deadline=None)
@given(lengths.filter(lambda values: values.size > 0), worlds)
def test_fbs_ranks_differ_by_at_most_the_longest_sample(lengths_S: np.ndarray, world: int) -> None:
    whole = lengths_S[: lengths_S.size // world * world]
    if whole.size:
        load = np.bincount(fbs(whole, world), weights=whole, minlength=world)
        assert load.max() - load.min() <= whole.max()


@settings(deadline=None)
@given(lengths, worlds)
def test_fbs_load_does_not_depend_on_the_order_of_samples(lengths_S: np.ndarray, world: int) -> None:
    shuffled = np.random.default_rng(0).permutation(lengths_S)
    load = np.bincount(fbs(lengths_S, world), weights=lengths_S, minlength=world)
    assert np.array_equal(load, np.bincount(fbs(shuffled, world), weights=shuffled, minlength=world))


def test_lengths_of_unsigned_type_do_not_wrap() -> None:
    assert fbs(np.array([1, 200], dtype=np.uint8), 2).tolist() == [1, 0]


@pytest.mark.parametrize(("world", "shape"), [(0, (4,)), (2, (2, 2))])
def test_bad_arguments(world: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        assign("fbs", np.zeros(shape, dtype=np.int64), world)
