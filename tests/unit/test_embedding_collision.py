"""Without these, the collision rate of Fig. 3 and 9 could be of another definition than the one it is labelled with:
one rank's rows for all ranks', lookups for distinct rows, t for t+1.

Not covered: the exchange that splits rows by it, and how often real data collide (`test_synthetic_collision.py`).
"""

from __future__ import annotations

import numpy as np
import pytest

from repro.embedding.collision import collision_mask, collision_share, distinct_rows, rank_collision_shares


def test_by_hand() -> None:
    current, following = distinct_rows(np.array([7, 3, 3, 1]), 10), distinct_rows(np.array([9, 3, 7, 9, 0]), 10)
    assert current.tolist() == [1, 3, 7]
    assert following.tolist() == [0, 3, 7, 9]
    assert collision_mask(following, current).tolist() == [False, True, True, False]
    assert collision_share(following, current) == 0.5
    assert collision_share(current, following) == pytest.approx(2 / 3)  # the rate is of the later batch's rows


def test_a_rank_collides_with_what_any_rank_touched() -> None:
    current = distinct_rows(np.array([1, 2, 3, 4]), 100)
    ranks = [np.array([1, 50]), np.array([2, 60, 61, 62]), np.array([70])]
    assert rank_collision_shares(ranks, current).tolist() == [0.5, 0.25, 0.0]


def test_popular_rows_weigh_more_by_rank_than_globally() -> None:
    popular, current = np.array([0]), np.array([0])
    ranks = [np.concatenate([popular, [10 + rank]]) for rank in range(8)]
    everything = distinct_rows(np.concatenate(ranks), 100)
    assert collision_share(everything, current) == pytest.approx(1 / 9)
    assert np.all(rank_collision_shares(ranks, current) == 0.5)


@pytest.mark.parametrize("table_rows", [50, 10**9])
def test_against_sets(table_rows: int) -> None:
    """With a bitmap and without."""
    random = np.random.default_rng(0)
    for _ in range(20):
        one, two = random.integers(50, size=random.integers(60)), random.integers(50, size=random.integers(60))
        first, second = distinct_rows(one, table_rows), distinct_rows(two, table_rows)
        assert first.tolist() == sorted(set(one.tolist()))
        shared = set(one.tolist()) & set(two.tolist())
        assert set(second[collision_mask(second, first)].tolist()) == shared
        assert collision_share(second, first) == pytest.approx(len(shared) / max(1, second.size))


def test_nothing_touched() -> None:
    none, some = np.zeros(0, dtype=np.int64), np.arange(3)
    assert collision_share(none, some) == 0.0
    assert collision_share(some, none) == 0.0
    assert distinct_rows(none, 5).tolist() == []
