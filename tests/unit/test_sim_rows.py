"""Without this prioritized updates could be simulated with wrong row counts: rows counted by lookup instead of by rank,
collisions decided by one rank instead of all, or a sample that is biased. Not covered: agreement with the real exchange
(it is checked against `repro.embedding.collision`, which the real one's tests share) and what a row costs."""

from types import SimpleNamespace

import numpy as np
import pytest
from sim_data import StandIn, skewed

from repro.embedding.collision import collision_mask, collision_share
from repro.execution.simulated import rows as rows_module
from repro.execution.simulated.rows import RowCounter, RowTraffic

WORLD, BATCH = 4, 64
RANK_S = np.arange(BATCH) % WORLD


def keys_of(data: StandIn, requests: np.ndarray, cap: int) -> np.ndarray:
    """Distinct (table, row) keys of requests by plain Python: item rows first, then actions."""
    found = set()
    for request in requests.tolist():
        end = int(data.uih_end[request])
        events = slice(end - min(int(data.lengths[request]), cap), end)
        found |= set(data.event_feature("item")[events].tolist())
        found |= {10**6 + action for action in data.event_feature("action")[events].tolist()}
        candidates = slice(*data.candidate_offsets[request : request + 2])
        found |= set(data.candidate_feature("item")[candidates].tolist())
    return np.array(sorted(found))


@pytest.mark.parametrize("cap", [50, 10**6])
def test_counts_are_those_of_plain_sets(cap):
    data = skewed(3 * BATCH, seed=7)
    traffic = RowCounter(data, BATCH, cap).traffic(1, RANK_S, WORLD)
    of_batch = [keys_of(data, data.global_rows(t, BATCH), cap) for t in range(3)]
    for rank in range(WORLD):
        mine = keys_of(data, data.global_rows(1, BATCH)[rank == RANK_S], cap)
        assert traffic.asked[rank] == mine.size
        assert traffic.asked_late[rank] == collision_mask(mine, of_batch[0]).sum()
        assert traffic.asked_urgent[rank] == collision_mask(mine, of_batch[2]).sum()
    assert traffic.owned.sum() == of_batch[1].size
    assert traffic.owned_urgent.sum() == collision_mask(of_batch[1], of_batch[2]).sum()


def test_what_is_asked_is_served():
    traffic = RowCounter(skewed(3 * BATCH), BATCH, 10**6).traffic(1, RANK_S, WORLD)
    for name in ("", "_late", "_urgent"):
        assert getattr(traffic, f"served{name}").sum() == getattr(traffic, f"asked{name}").sum()
    assert (traffic.served_late <= traffic.served).all()
    assert (traffic.owned <= traffic.served).all()


def test_global_collision_rate_is_the_one_of_the_embedding_room():
    data = skewed(3 * BATCH, seed=3)
    counter = RowCounter(data, BATCH, 10**6)
    touched = [counter.touched(t) for t in range(2)]
    first, second = (keys_of(data, data.global_rows(t, BATCH), 10**6) for t in range(2))
    assert touched[1].collision_share(touched[0]) == pytest.approx(collision_share(second, first))
    assert (touched[0].distinct, touched[1].distinct) == (first.size, second.size)


def test_a_row_of_another_rank_collides_too():
    """Rank 0 looks up row 5 in batch 0, rank 1 in batch 1: late for rank 1, though it never touched it itself."""
    data = StandIn(np.array([1, 1, 1, 1]), np.ones(4))
    data._events["item"] = np.array([5, 6, 7, 5], dtype=np.int32)
    data._candidates = np.array([100, 101, 102, 103], dtype=np.int32)
    data._events["action"] = np.array([0, 1, 2, 3], dtype=np.int32)
    data.manifest = SimpleNamespace(features=data.manifest.features, fingerprint="by hand, two ranks")
    counter = RowCounter(data, 2, 10)
    assert counter.traffic(1, np.array([0, 1]), 2).asked_late.tolist() == [0, 1]
    assert counter.traffic(0, np.array([0, 1]), 2).asked_urgent.tolist() == [1, 0]


def test_first_batch_has_nothing_late_and_the_last_is_as_if_followed():
    data = skewed(2 * BATCH)
    counter = RowCounter(data, BATCH, 10**6)
    assert not counter.traffic(0, RANK_S, WORLD).asked_late.any()
    last = counter.traffic(1, RANK_S, WORLD)
    assert last.asked_urgent.tolist() == last.asked_late.tolist()
    assert last.owned_urgent.sum() / last.owned.sum() == pytest.approx(last.asked_late.sum() / last.asked.sum())
    assert counter.touched(2) is None


def test_owners_share_hashed_rows_about_evenly():
    data = skewed(3 * 256, items=50_000, seed=2)
    traffic = RowCounter(data, 256, 10**6).traffic(1, np.arange(256) % 8, 8)
    assert traffic.owned.max() / traffic.owned.mean() < 1.1


@pytest.mark.parametrize("seed", range(6))
def test_sampled_counts_stay_within_their_bound(monkeypatch, seed):
    """Four standard errors, sqrt((k - 1) / n) each, for every rank's counts and the collision rate."""
    monkeypatch.setattr(rows_module, "ALWAYS_COUNTED", 4)
    data = skewed(3 * BATCH, seed=20 + seed, items=400_000)
    full = RowCounter(data, BATCH, 10**6)
    sampled = RowCounter(data, BATCH, 10**6, most_ids=20_000)
    k = sampled._factors[0]
    assert k >= 4
    assert full._factors == (1, 1)
    assert sampled._factors[1] == 1  # four actions are never sampled
    exact, estimate = (counter.traffic(1, RANK_S, WORLD) for counter in (full, sampled))
    for name in ("asked", "asked_late", "asked_urgent", "served", "owned"):
        n = getattr(exact, name)
        assert np.abs(getattr(estimate, name) - n).max() <= 4 * np.sqrt((k - 1) * n.max()), name
    shares = [c.touched(1).collision_share(c.touched(0)) for c in (full, sampled)]
    assert shares[1] == pytest.approx(shares[0], abs=4 * np.sqrt(k / exact.owned.sum()))


def test_sampling_is_unbiased(monkeypatch):
    """Every row is in exactly one of k residue classes, so the estimates of all k samples average to the full count."""
    monkeypatch.setattr(rows_module, "ALWAYS_COUNTED", 4)
    items = np.arange(300_000, dtype=np.int32)
    k = 8
    residue = rows_module._hash(items, rows_module._SAMPLE_HASH) % np.uint32(k)
    sizes = k * np.bincount(residue, minlength=k)
    assert sizes.mean() == items.size
    assert np.abs(sizes / items.size - 1).max() < 0.02  # and no class is odd, although ids are consecutive


def test_an_overridden_share_is_the_share_everywhere():
    traffic = RowCounter(skewed(3 * BATCH), BATCH, 10**6).traffic(1, RANK_S, WORLD)
    tenth = traffic.with_share(0.1)
    assert tenth.asked_late == pytest.approx(0.1 * traffic.asked)
    assert tenth.served_urgent == pytest.approx(0.1 * traffic.served)
    assert tenth.owned_urgent == pytest.approx(0.1 * traffic.owned)
    assert tenth.asked is traffic.asked
    assert isinstance(tenth, RowTraffic)


def test_batches_are_counted_once(monkeypatch):
    data = skewed(3 * BATCH, seed=99)
    RowCounter(data, BATCH, 10**6).traffic(1, RANK_S, WORLD)
    monkeypatch.setattr(RowCounter, "_ids", lambda *_: pytest.fail("read again"))
    RowCounter(data, BATCH, 10**6).traffic(1, RANK_S, WORLD)
