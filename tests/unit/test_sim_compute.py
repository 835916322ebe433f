"""Without this a factor (heads counted twice, backward forgotten) would slip into the compute model: each function is
held against its formula worked out by hand and, where one exists, a published measurement. Not covered: other GPUs."""

import numpy as np
import pytest

from repro.config import ModelConfig
from repro.errors import InputError
from repro.execution.simulated import compute
from repro.execution.simulated.assumptions import ASSUMPTIONS
from repro.execution.simulated.clusters import H100_PAPER

SMALL = ModelConfig(name="small", layers=2, dim=512, heads=4)
PROFILED = ModelConfig(name="hstu_8l_1024d", layers=8, dim=1024, heads=4)
"""Shape of NVIDIA's published profile: batch 32 of 4099 tokens."""


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_pairs_are_causal_history_and_candidates_against_history():
    assert compute.attention_pairs(whole(10, 0, 4), whole(3, 5, 0)).tolist() == [50 + 30, 0, 8]


def test_throughput_is_half_its_peak_at_the_half_length():
    assert compute.Throughput(500e12, 1000, 1.3).at(np.array([1000.0])).tolist() == [250e12]


@pytest.mark.parametrize(
    ("head_dim", "way", "length", "measured"),
    [
        (64, 0, 1024, 207), (64, 1, 16384, 423), (128, 0, 4096, 528), (128, 0, 512, 182),
        (128, 1, 2048, 384), (128, 1, 16384, 486), (256, 0, 2048, 537), (256, 1, 4096, 360),
    ],
)  # fmt: skip
def test_throughput_against_the_measured_heatmap(head_dim, way, length, measured):
    rate = compute.ATTENTION[head_dim][way].at(np.array([float(length)]))[0] / 1e12
    assert rate == pytest.approx(measured, rel=0.14)


def test_attention_closed_form():
    """d = 128: 4 x 4 x 128 FLOPs a pair forward at 571 TF / (1 + (833/n)^1.36), 2.5 times as many backward."""
    forward, backward = compute.attention(SMALL, whole(4000), whole(10))
    pairs = 4000**2 / 2 + 4000 * 10
    assert forward[0] == pytest.approx(2048 * pairs * (1 + (833 / 4010) ** 1.36) / 571e12)
    assert backward[0] == pytest.approx(5120 * pairs * (1 + (879 / 4010) ** 1.30) / 499e12)


def test_attention_of_an_empty_history_takes_no_time():
    assert [seconds.tolist() for seconds in compute.attention(SMALL, whole(0, 0), whole(5, 0))] == [[0, 0], [0, 0]]


def test_attention_against_the_published_profile():
    """8 layers, batch 32 of 4099: 15.7 ms forward and 65.6 ms backward."""
    forward, backward = compute.attention(PROFILED, np.full(32, 4099), np.zeros(32, dtype=np.int64))
    assert 8 * forward.sum() * 1e3 == pytest.approx(15.7, rel=0.10)
    assert 8 * backward.sum() * 1e3 == pytest.approx(65.6, rel=0.10)


def test_dense_against_the_published_profile():
    """Attention 79.9, matmuls 43.9 and elementwise 39.5 ms a step."""
    forward_R, backward_R = compute.dense(
        PROFILED, H100_PAPER, np.full(32, 4099), np.zeros(32, dtype=np.int64), np.zeros(32, dtype=np.int64), 1
    )
    assert (forward_R + backward_R)[0] * 1e3 == pytest.approx(79.9 + 43.9 + 39.5, rel=0.05)


@pytest.mark.parametrize(("dim", "heads", "padded"), [(64, 2, 64), (512, 4, 128), (384, 4, 128), (1024, 4, 256)])
def test_head_dimensions_are_padded_to_a_kernel(dim, heads, padded):
    assert compute.padded_head_dim(ModelConfig(name="m", layers=1, dim=dim, heads=heads)) == padded


def test_too_wide_heads_are_refused():
    with pytest.raises(InputError, match=r"model.heads: 512 channels"):
        compute.padded_head_dim(ModelConfig(name="m", layers=1, dim=1024, heads=2))


def test_kernel_time_is_bound_by_all_work_or_by_the_longest_block():
    seconds = np.array([1.0, 2.0, 3.0, 4.0])
    blocks = np.array([0.5, 9.0, 0.5, 0.5])
    assert compute.kernel_time(seconds, blocks, whole(0, 0, 1, 1), 3).tolist() == [9.0, 7.0, 0.0]


def test_longest_block():
    """1 ms on 132 SMs and 4 heads is 33 ms a head on one SM; in 8 row tiles of 128 the last does 2/8 of it."""
    seconds, length = np.array([1e-3, 1e-3]), np.array([1024, 100])
    samples = compute.longest_block(SMALL, H100_PAPER, seconds, length, "samples")
    tiles = compute.longest_block(SMALL, H100_PAPER, seconds, length, "row_tiles")
    assert samples == pytest.approx([33e-3, 33e-3])
    assert tiles == pytest.approx([33e-3 / 4, 33e-3])


def test_one_block_a_sample_leaves_an_intra_kernel_straggler():
    """Two ranks with equal work: the one whose work is a single long sample takes longer, unless kernels tile rows."""
    long, short = 16000, 4000
    pairs = (long / short) ** 2
    uih = whole(long, *[short] * int(pairs))
    rank = whole(0, *[1] * int(pairs))
    none = np.zeros_like(uih)
    ratio = {}
    for blocks in ("row_tiles", "samples"):
        forward_R, _ = compute.dense(SMALL, H100_PAPER, uih, none, rank, 2, blocks)
        ratio[blocks] = forward_R[0] / forward_R[1]
    assert ratio["row_tiles"] < 1 < 3 < ratio["samples"]


def test_projections_closed_form():
    forward, backward = compute.projections(SMALL, H100_PAPER, np.array([1000.0]))
    assert forward[0] == pytest.approx(10 * 1000 * 512**2 / 672e12)
    assert backward[0] == pytest.approx(2 * forward[0])


def test_elementwise_closed_form():
    """37.6 ns a token and layer at width 1024."""
    assert compute.elementwise(PROFILED, H100_PAPER, np.array([1.0]))[0] == pytest.approx(37.6e-9, rel=0.005)


def test_a_layer_never_beats_its_launches():
    """20 launches of 5 us a layer, two layers, a third of them forward."""
    forward, backward = compute.dense(SMALL, H100_PAPER, whole(1), whole(1), whole(0), 2)
    assert forward.tolist() == pytest.approx([2 * 100e-6 / 3] * 2)
    assert backward.tolist() == pytest.approx([2 * 200e-6 / 3] * 2)


def test_dense_of_ranks_is_the_sum_over_their_samples():
    uih, candidates, rank = whole(5000, 8000, 9000, 12000), whole(4, 8, 1, 16), whole(1, 0, 1, 0)
    forward, backward = compute.dense(SMALL, H100_PAPER, uih, candidates, rank, 2)
    for r in (0, 1):
        mine = rank == r
        alone_forward, alone_backward = compute.dense(SMALL, H100_PAPER, uih[mine], candidates[mine], rank[mine] * 0, 1)
        assert (forward[r], backward[r]) == pytest.approx((alone_forward[0], alone_backward[0]))
    tokens = 5000 + 4 + 9000 + 1
    attention = compute.attention(SMALL, uih, candidates)[0]
    layer = attention[0] + attention[2] + (10 * tokens * 512**2 / 672e12) + 51.5 * tokens * 512 * 2 / 2.8e12 / 3
    assert forward[1] == pytest.approx(2 * layer)


def test_lookup_closed_form():
    assert compute.lookup(SMALL, H100_PAPER, np.array([1e6])) == pytest.approx(5e-6 + 2e6 * 2048 / 2.5e12)


def test_row_update_closed_form():
    received, distinct = np.array([1e6, 0.0]), np.array([4e5, 0.0])
    moved = np.array([(1 + 2 * 0.4) * 1e6 * 2048, 0])
    plain = compute.row_update(SMALL, H100_PAPER, received, distinct, "sgd")
    assert plain == pytest.approx(5e-6 + moved / 1.45e12)
    with_state = moved + 2 * distinct * 4
    adagrad = compute.row_update(SMALL, H100_PAPER, received, distinct, "rowwise_adagrad")
    assert adagrad == pytest.approx(5e-6 + with_state / 1.45e12)


def test_dense_parameters_are_those_of_the_model():
    from repro.model.ranker import DenseRanker  # here, as the other tests need no torch

    for config in (SMALL, ModelConfig(name="m", layers=3, dim=12, heads=2)):
        model = DenseRanker(config, max_length=10)
        assert compute.dense_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_optimizer_step_closed_form():
    parameters = compute.dense_parameters(SMALL)
    assert compute.optimizer_step(SMALL, H100_PAPER) == pytest.approx(5e-6 + 28 * parameters / 2.8e12)


def test_assumptions_are_numbered_without_gaps():
    assert [a.number for a in ASSUMPTIONS] == [f"A{n}" for n in range(1, len(ASSUMPTIONS) + 1)]
