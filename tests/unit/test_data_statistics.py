"""Without these, `repro describe`, the fit of synthetic data and Fig. 3 would rest on unchecked arithmetic.

Not covered: how the statistics are drawn (test_report_describe.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from prep_logs import prepare_log, small_log

from data_prep import sources
from repro.data import statistics as module
from repro.data.dataset import PreparedDataset
from repro.data.statistics import collision, from_dict, gini, popularity, statistics
from repro.errors import InputError


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    root = tmp_path_factory.mktemp("tiny")
    return PreparedDataset.open(sources.prepare("tiny", root / "data", key_path=root / "key", log=lambda _: None))


def test_collisions_against_sets(tiny: PreparedDataset) -> None:
    """Row by row, from what the reader delivers."""
    ranks, batch, cap = 4, 5, 30

    def rows(t: int, rank: int) -> set[tuple[str, int]]:
        block = tiny.read(tiny.rank_rows(t, ranks * batch, rank, ranks), cap)
        both = [*block.uih.items(), *block.candidate.items()]
        return {(name, int(one)) for name, ids in both for one in ids}

    found = collision(tiny, ranks=ranks, batch=batch, max_uih=cap, pairs=10**6)
    assert found is not None
    assert len(found.global_pct) == tiny.global_batches(20) - 1
    for t in (0, 7, len(found.global_pct) - 1):
        current = set.union(*(rows(t, rank) for rank in range(ranks)))
        following = [rows(t + 1, rank) for rank in range(ranks)]
        everything = set.union(*following)
        assert found.global_pct[t] == pytest.approx(100 * len(everything & current) / len(everything))
        shares = [100 * len(one & current) / len(one) for one in following]
        assert found.rank_pct[t] == pytest.approx(np.mean(shares))


def test_no_collision_between_less_than_two_batches(tiny: PreparedDataset) -> None:
    assert collision(tiny, ranks=1, batch=len(tiny), max_uih=5, pairs=1) is None
    assert collision(tiny, ranks=1, batch=len(tiny) // 2, max_uih=5, pairs=9) is not None


def test_popularity_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 3)
    found = popularity("item", np.array([5, 5, 5, 5, 5, 5, 1, 1, 2, 0]), 9)
    assert (found.distinct, found.vocabulary, found.ranks, found.counts) == (4, 9, (1, 2, 3, 4), (6, 2, 1, 1))
    assert found.top_shares == {"0.001": 0.6, "0.01": 0.6, "0.1": 0.6}
    assert found.gini == pytest.approx(np.abs(np.subtract.outer([6, 2, 1, 1], [6, 2, 1, 1])).mean() / (2 * 2.5))


def test_gini_of_extremes() -> None:
    assert gini(np.full(100, 7)) == pytest.approx(0)
    assert gini(np.array([10**6, *[1] * 999])) > 0.99


def test_numbers_of_a_small_log(tmp_path: Path) -> None:
    """User 0 has five events and comes with histories of 1 and more; user 1 has two."""
    log = small_log([0, 0, 0, 0, 0, 1, 1], [0, 1, 2, 3, 4, 0, 9])
    dataset = PreparedDataset.open(prepare_log(log, tmp_path / "data"))
    found = statistics(dataset)
    assert (found.users, found.events, found.labels) == (2, 7, 5)
    assert found.uih_length.mean == pytest.approx((dataset.uih_end - dataset.uih_begin).mean())
    assert sum(found.candidate_counts) == found.requests == len(dataset)
    assert sum(number * count for number, count in enumerate(found.candidate_counts)) == 5
    assert found.collision is None


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_activity_is_the_slope(slope: float) -> None:
    length_U = np.array([1, 10, 100, 1_000])
    assert module._activity(3 * length_U**slope, length_U) == pytest.approx(slope)
    assert module._activity(np.array([5]), np.array([7])) == 0.0


def test_survives_json(tiny: PreparedDataset) -> None:
    found = statistics(tiny)
    assert from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(InputError, match="repro describe"):
        from_dict({"name": "x"})


@pytest.mark.parametrize("argument", ["ranks", "batch", "max_uih", "pairs"])
def test_arguments_below_one(tiny: PreparedDataset, argument: str) -> None:
    with pytest.raises(InputError, match=argument):
        statistics(tiny, **{argument: 0})
