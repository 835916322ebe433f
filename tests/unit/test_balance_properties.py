"""Without this, a partition could lose or double samples, break the equal counts that a fixed batch size promises, pass
the token cap, or differ between ranks.

Not covered: how good partitions are (test_balance_quality), and moving the samples (tests/distributed).
"""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repro.balance.bounds import lower_bound, quality
from repro.balance.by_cost import fbs_cost
from repro.balance.cost import SampleCost
from repro.balance.karmarkar_karp import karmarkar_karp
from repro.balance.order import descending
from repro.balance.partition import FREE_COUNTS, assign
from repro.balance.segments import vbs
from repro.balance.zigzag import fbs
from repro.config import BalanceConfig, Partition
from repro.errors import InputError

PARTITIONS: tuple[Partition, ...] = get_args(Partition)

lengths = st.one_of(
    arrays(np.int64, st.integers(0, 120), elements=st.integers(0, 21_000)),
    arrays(np.int64, st.integers(1, 60), elements=st.sampled_from([0, 1, 7, 21_000])),
    st.integers(1, 90).map(lambda count: np.full(count, 7)),
    st.integers(1, 90).map(lambda count: np.append(np.ones(count - 1, dtype=np.int64), 10**9)),
    st.integers(1, 90).map(lambda count: np.zeros(count, dtype=np.int64)),
)
worlds = st.integers(1, 17)
partitions = st.sampled_from(PARTITIONS)
GIANT = np.array([1_000_000, 1, 1, 1, 1, 1, 1])


@settings(deadline=None)
@given(partitions, lengths, worlds, st.integers(0, 16))
@example("vbs_cost", GIANT, 3, 4)
@example("fbs_cost", GIANT, 3, 4)
@example("vbs", np.array([5]), 4, 1)
def test_every_sample_goes_to_one_rank_and_counts_are_as_promised(
    partition: Partition, lengths_S: np.ndarray, world: int, candidates: int
) -> None:
    candidates_S = np.arange(lengths_S.size) % (candidates + 1)
    rank_S = assign(partition, lengths_S, world, candidates_S=candidates_S)
    assert rank_S.shape == lengths_S.shape and rank_S.dtype == np.int64
    assert lengths_S.size == 0 or (rank_S.min() >= 0 and rank_S.max() < world)
    counts_W = np.bincount(rank_S, minlength=world)
    if partition not in FREE_COUNTS:
        assert counts_W.max() - counts_W.min() <= 1
    assert np.array_equal(rank_S, assign(partition, lengths_S, world, candidates_S=candidates_S))


@settings(deadline=None)
@given(partitions, lengths, worlds)
def test_no_partition_beats_the_lower_bound(partition: Partition, lengths_S: np.ndarray, world: int) -> None:
    cost_S = SampleCost().of(lengths_S, np.zeros_like(lengths_S))
    load_W = np.bincount(assign(partition, lengths_S, world), weights=cost_S, minlength=world)
    bound = lower_bound(cost_S, world, equal_counts=partition not in FREE_COUNTS)
    assert load_W.max() >= bound * (1 - 1e-12)


@settings(deadline=None)
@given(lengths, worlds)
def test_ours_is_never_worse_than_karmarkar_karp(lengths_S: np.ndarray, world: int) -> None:
    cost_S = SampleCost().of(lengths_S, np.zeros_like(lengths_S))

    def heaviest(rank_S: np.ndarray) -> float:
        return float(np.bincount(rank_S, weights=cost_S, minlength=world).max())

    assert heaviest(fbs_cost(cost_S, lengths_S, world)) <= heaviest(karmarkar_karp(cost_S, world)) * (1 + 1e-9)


@settings(deadline=None)
@given(lengths, worlds)
def test_vbs_is_by_weight_never_worse_than_fbs(lengths_S: np.ndarray, world: int) -> None:
    weight_S = lengths_S.astype(np.float64) ** 1.5
    cut = np.bincount(vbs(lengths_S, world, alpha=1.5), weights=weight_S, minlength=world).max()
    dealt = np.bincount(fbs(lengths_S, world), weights=weight_S, minlength=world).max()
    assert cut <= dealt * (1 + 1e-5)


@settings(deadline=None)
@given(lengths, worlds)
def test_vbs_cuts_the_batch_into_contiguous_segments(lengths_S: np.ndarray, world: int) -> None:
    rank_S = vbs(lengths_S, world, alpha=1.0, batch_order=True)
    assert (np.diff(rank_S) >= 0).all()


@settings(deadline=None)
@given(partitions, lengths, worlds, st.floats(1.0, 3.0))
def test_no_rank_passes_the_token_cap(partition: Partition, lengths_S: np.ndarray, world: int, room: float) -> None:
    most = int(lengths_S.max(initial=0))
    cap = int(room * max(most, -(-int(lengths_S.sum()) // world))) + 1
    try:
        rank_S = assign(partition, lengths_S, world, balance=BalanceConfig(token_cap=cap))
    except InputError as error:
        assert "token_cap" in str(error) and str(cap) in str(error)
        return
    assert np.bincount(rank_S, weights=lengths_S, minlength=world).max() <= cap
    counts_W = np.bincount(rank_S, minlength=world)
    assert partition in FREE_COUNTS or counts_W.max() - counts_W.min() <= 1


def test_the_cap_moves_samples_where_cost_alone_would_not() -> None:
    # One rank would get the long sample, the other all short ones: equal cost, but three times the tokens.
    lengths_S = np.array([20_000, *[1_000] * 60])
    free = np.bincount(assign("vbs_cost", lengths_S, 2), weights=lengths_S)
    capped = assign("vbs_cost", lengths_S, 2, balance=BalanceConfig(token_cap=45_000))
    assert free.max() > 45_000 >= np.bincount(capped, weights=lengths_S).max()


@pytest.mark.parametrize(
    ("partition", "cap", "names"),
    [
        ("fbs", 8, ("sample 1", "9 tokens", "cap is 8", "max_uih")),
        ("vbs_cost", 9, ("20 tokens", "2 ranks", "at least 10")),
        ("identity", 15, ("rank 0", "16 tokens", "cap is 15", "vbs_cost")),
        ("fbs_cost", 10, ("10 tokens", "cap is")),
    ],
)
def test_an_impossible_batch_names_sample_tokens_cap_and_fix(
    partition: Partition, cap: int, names: tuple[str, ...]
) -> None:
    lengths_S = {"fbs": [1, 9, 1, 1], "identity": [8, 1, 8, 1]}.get(partition, [8, 1, 8, 3])
    if partition == "fbs_cost":
        lengths_S, names = [4, 4, 4, 8], ("rank", "sample 3", "the cap is 10", "raise token_cap")
    with pytest.raises(InputError) as error:
        assign(partition, np.array(lengths_S), 2, balance=BalanceConfig(token_cap=cap))
    for name in names:
        assert name in str(error.value)


@pytest.mark.parametrize("partition", sorted(FREE_COUNTS))
def test_shares_are_followed(partition: Partition) -> None:
    lengths_S = np.random.default_rng(0).integers(1, 50, 4_000)
    balance = BalanceConfig(alpha=1.0, attention_length=1e9, vbs_order="batch")
    rank_S = assign(partition, lengths_S, 4, balance=balance, share_W=np.array([2.0, 1.0, 1.0, 4.0]))
    load_W = np.bincount(rank_S, weights=lengths_S)
    assert load_W / load_W.sum() == pytest.approx([0.25, 0.125, 0.125, 0.5], abs=0.003)


@pytest.mark.parametrize("share", [[1.0], [1.0, 0.0], [1.0, float("nan")], [2.0, -1.0]])
def test_bad_shares(share: list[float]) -> None:
    with pytest.raises(InputError, match="shares"):
        assign("vbs", np.ones(4, dtype=np.int64), 2, share_W=np.array(share))


def test_partitions_of_equal_counts_take_no_shares() -> None:
    with pytest.raises(InputError, match="vbs or vbs_cost"):
        assign("fbs", np.ones(4, dtype=np.int64), 2, share_W=np.array([0.5, 0.5]))


def test_candidates_must_fit_lengths() -> None:
    with pytest.raises(InputError, match="candidates"):
        assign("fbs", np.ones(4, dtype=np.int64), 2, candidates_S=np.ones(3, dtype=np.int64))


@settings(deadline=None)
@given(st.one_of(lengths, arrays(np.float64, st.integers(0, 60), elements=st.floats(0, 2.0**40, width=32))))
def test_descending_is_a_stable_sort(values_S: np.ndarray) -> None:
    assert np.array_equal(descending(values_S), np.argsort(-values_S, kind="stable"))


def test_a_bound_can_be_reached_with_equal_counts_only_when_it_counts_the_filling() -> None:
    cost_S = np.array([9.0, 1.0, 1.0, 1.0])
    assert lower_bound(cost_S, 2, equal_counts=False) == 9
    assert lower_bound(cost_S, 2, equal_counts=True) == 10
    assert lower_bound(np.full(3, 5.0), 2, equal_counts=False) == 10
    judged = quality(np.array([0, 0, 1, 1]), cost_S, cost_S, 2, equal_counts=True)
    assert judged.gap_pct == pytest.approx(0) and judged.max_over_mean == pytest.approx(10 / 6)


def test_cost_of_a_sample() -> None:
    # At attention_length tokens, attention costs as much as the rest; a candidate adds one pair per event of history.
    assert SampleCost(attention_length=100.0).of(np.array([100]), np.array([0])).tolist() == [200.0]
    assert SampleCost(attention_length=100.0).of(np.array([100]), np.array([5])).tolist() == [215.0]
    with pytest.raises(InputError, match="attention_length"):
        SampleCost(attention_length=0.0)


def test_another_process_deals_alike() -> None:
    """Ranks never compare their partitions; they rely on this."""
    code = (
        "import numpy as np; from repro.balance.partition import assign;"
        "print([assign(p, np.arange(999) % 77 * 31, 8).tolist() for p in ('vbs', 'fbs_cost', 'vbs_cost')])"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = [assign(p, np.arange(999) % 77 * 31, 8).tolist() for p in ("vbs", "fbs_cost", "vbs_cost")]
    assert there.strip() == str(here)
