"""Without these the synthetic workload could drift away from what the straggler figures assume.

Not covered: the full-size preset (tens of megabytes; only its length distribution is checked here).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from data_prep import sources, synthetic
from repro.data.dataset import PreparedDataset
from repro.errors import InputError

TINY = synthetic.SYNTHETIC_TINY


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    root = tmp_path_factory.mktemp("synthetic")
    return PreparedDataset.open(
        sources.prepare("synthetic-tiny", root / "data", key_path=root / "key", log=lambda _: None)
    )


def test_same_seed_same_log() -> None:
    one, again, other = (synthetic.generate(dataclasses.replace(TINY, seed=seed)) for seed in (3, 3, 4))
    for name in ("user", "item", "time", "label"):
        assert np.array_equal(getattr(one, name), getattr(again, name))
        assert not np.array_equal(getattr(one, name), getattr(other, name))
    assert np.array_equal(one.actions["action"], again.actions["action"])


def test_tiny_has_what_tests_need(tiny: PreparedDataset) -> None:
    assert 2_000 < len(tiny) < 5_000
    assert 150 < (tiny.uih_end - tiny.uih_begin).max() <= TINY.length_cap
    assert 0.3 < tiny.manifest.positives / tiny.manifest.labels < 0.7
    assert tiny.request_time.min() >= TINY.first_request_ms


def test_lengths_of_the_full_preset() -> None:
    """Skewed as in industry: a median near a thousand, few users of more than ten thousand events."""
    knobs = synthetic.SYNTHETIC
    length = synthetic._lengths(knobs, np.random.default_rng(0))
    assert np.median(length) == pytest.approx(np.exp(knobs.length_mu), rel=0.01)
    assert 18_000 < length.max() <= knobs.length_cap
    assert 0 < np.count_nonzero(length > 10_000) < 0.01 * length.size


def test_the_longest_histories_do_not_hang_on_the_seed() -> None:
    lengths = [np.sort(synthetic._lengths(TINY, np.random.default_rng(seed))) for seed in (0, 1)]
    assert np.array_equal(*lengths)


def test_labels_can_be_learned() -> None:
    """Items and genres tell labels apart, so that normalized entropy can fall below 1."""
    log = synthetic.generate(dataclasses.replace(TINY, users=3_000))
    rate = log.label.mean()
    favourite = np.zeros(3_000, dtype=np.int64)
    genre = log.item % TINY.genres
    counts = np.zeros((3_000, TINY.genres), dtype=np.int64)
    np.add.at(counts, (log.user, genre), 1)
    favourite = counts.argmax(axis=1)
    inside = genre == favourite[log.user]
    assert log.label[inside].mean() > rate + 0.1
    assert log.label[~inside].mean() < rate - 0.1


def test_action_agrees_with_the_label() -> None:
    log = synthetic.generate(TINY)
    assert np.array_equal(log.label == 1, log.actions["action"] >= 2)
    assert np.unique(log.actions["action"]).tolist() == [0, 1, 2, 3]


def test_popularity_is_zipf() -> None:
    log = synthetic.generate(dataclasses.replace(TINY, users=3_000))
    counts = np.bincount(log.item // TINY.genres)
    assert counts[0] / counts[9] == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize(
    ("change", "message"), [({"users": 0}, "users"), ({"length_cap": 1}, "length_cap"), ({"request_days": 0}, "days")]
)
def test_impossible_knobs(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(TINY, **change)
