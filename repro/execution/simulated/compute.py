"""Durations of compute on one GPU, from the lengths of the samples it holds.

This is deliberately not the cost function any balancer uses: a balancer that was judged by its own estimate would
always look perfect. All results are seconds as float64. Sources and confidence: assumptions A1-A7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from repro.config import ModelConfig, SparseOptimizer
from repro.errors import InputError
from repro.execution.simulated.clusters import Cluster

# S samples of one global batch, R ranks

AttentionBlocks = Literal["row_tiles", "samples"]
"""What one thread block of the attention kernel works on (assumption A3)."""

_FLOAT32 = 4
_BFLOAT16 = 2
_ELEMENTWISE_PASSES = 51.5
"""Reads or writes of one (tokens, dim) bf16 tensor a layer, forward and backward together."""
_FORWARD_SHARE = 1 / 3
"""Of elementwise work and launches: backward is taken as twice forward, as for the projections."""
_LAUNCHES_PER_LAYER = 20
_TILE_ROWS = 128
_ADAM_BYTES = 28
"""A parameter: read weight, gradient and two moments, write weight and two moments, all float32."""


@dataclass(frozen=True)
class Throughput:
    """Achieved attention FLOP/s at sequence length n: peak / (1 + (half / n)^power)."""

    peak: float
    half: float
    """Length at which half the peak is reached."""
    power: float

    def at(self, length_S: np.ndarray) -> np.ndarray:
        """FLOP/s at each length, float64 (S,); lengths must be positive."""
        rate: np.ndarray = self.peak / (1.0 + (self.half / length_S) ** self.power)
        return rate


ATTENTION: dict[int, tuple[Throughput, Throughput]] = {
    64: (Throughput(500e12, 1236, 1.32), Throughput(438e12, 988, 1.25)),
    128: (Throughput(571e12, 833, 1.36), Throughput(499e12, 879, 1.30)),
    256: (Throughput(679e12, 822, 1.26), Throughput(399e12, 691, 1.23)),
}
"""Head dimension -> (forward, backward) of the CUTLASS HSTU kernel on H100 in bf16."""


def padded_head_dim(model: ModelConfig) -> int:
    """Head dimension the kernel runs: the next of 64, 128, 256.

    Raises:
        InputError: larger than 256.
    """
    wanted = model.dim // model.heads
    for available in sorted(ATTENTION):
        if wanted <= available:
            return available
    raise InputError(
        f"model.heads: {wanted} channels a head, but attention kernels stop at {max(ATTENTION)}; use more heads"
    )


def attention_pairs(uih_S: np.ndarray, candidates_S: np.ndarray) -> np.ndarray:
    """(query, key) pairs of each sample, float64 (S,): history is causal, a candidate sees the history only."""
    history = uih_S.astype(np.float64)
    return history**2 / 2 + candidates_S * history


def attention(model: ModelConfig, uih_S: np.ndarray, candidates_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One layer's attention, forward and backward, of each sample if it had the GPU for itself and filled it.

    FLOPs a pair: 4 x heads x head dim forward (two products), 10 x backward (five products).

    Returns:
        Seconds, two float64 (S,).
    """
    head_dim = padded_head_dim(model)
    forward, backward = ATTENTION[head_dim]
    length_S = np.maximum(uih_S + candidates_S, 1)
    flops_S = model.heads * head_dim * attention_pairs(uih_S, candidates_S)
    return 4 * flops_S / forward.at(length_S), 10 * flops_S / backward.at(length_S)


def longest_block(
    model: ModelConfig, cluster: Cluster, seconds_S: np.ndarray, length_S: np.ndarray, blocks: AttentionBlocks
) -> np.ndarray:
    """Time of each sample's longest thread block on its one SM, float64 (S,).

    `row_tiles`: a block is 128 query rows of one head, and under the causal mask the last has twice the mean work.
    `samples`: a block is one head of the whole sample.
    """
    on_one_sm_S = seconds_S * cluster.sms / model.heads
    match blocks:
        case "samples":
            return on_one_sm_S
        case "row_tiles":
            tiles_S = np.ceil(length_S / _TILE_ROWS)
            longest_S: np.ndarray = on_one_sm_S * np.minimum(2.0 / np.maximum(tiles_S, 1.0), 1.0)
            return longest_S
    assert_never(blocks)


def kernel_time(seconds_S: np.ndarray, block_S: np.ndarray, rank_S: np.ndarray, world: int) -> np.ndarray:
    """Duration of one kernel on each rank, whose samples' thread blocks share the SMs.

    Args:
        seconds_S: each sample's time with all SMs at work on it, float (S,).
        block_S: time of each sample's longest block on one SM, float (S,).
        rank_S: rank of each sample, int (S,).

    Returns:
        max(all work spread evenly, the longest block), float64 (R,): the lower bound of any schedule, which
        longest-first list scheduling misses by at most a third (Graham 1969).
    """
    spread_R = np.bincount(rank_S, weights=seconds_S, minlength=world)
    longest_R = np.zeros(world)
    np.maximum.at(longest_R, rank_S, block_S)
    bound: np.ndarray = np.maximum(spread_R, longest_R)
    return bound


def projections(model: ModelConfig, cluster: Cluster, tokens_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One layer's matmuls, forward and backward, float64 (R,): D x 4D (u, v, q, k) and D x D (output)."""
    forward_R = 10 * tokens_R * model.dim**2 / cluster.gemm_flops
    return forward_R, 2 * forward_R


def elementwise(model: ModelConfig, cluster: Cluster, tokens_R: np.ndarray) -> np.ndarray:
    """One layer's norms, gates and residuals, forward and backward together, float64 (R,)."""
    return _ELEMENTWISE_PASSES * tokens_R * model.dim * _BFLOAT16 / cluster.elementwise_bandwidth


def dense(
    model: ModelConfig,
    cluster: Cluster,
    uih_S: np.ndarray,
    candidates_S: np.ndarray,
    rank_S: np.ndarray,
    world: int,
    blocks: AttentionBlocks = "row_tiles",
) -> tuple[np.ndarray, np.ndarray]:
    """The whole dense part, forward and backward, float64 (R,). A layer never beats its kernel launches."""
    length_S = uih_S + candidates_S
    tokens_R = np.bincount(rank_S, weights=length_S, minlength=world)
    forward_S, backward_S = attention(model, uih_S, candidates_S)
    forward_R, backward_R = projections(model, cluster, tokens_R)
    elementwise_R = elementwise(model, cluster, tokens_R)

    def layers(attention_S: np.ndarray, projections_R: np.ndarray, share: float) -> np.ndarray:
        block_S = longest_block(model, cluster, attention_S, length_S, blocks)
        work_R = kernel_time(attention_S, block_S, rank_S, world) + projections_R + share * elementwise_R
        floor = share * _LAUNCHES_PER_LAYER * cluster.kernel_launch
        bound_R: np.ndarray = model.layers * np.maximum(work_R, floor)
        return bound_R

    return layers(forward_S, forward_R, _FORWARD_SHARE), layers(backward_S, backward_R, 1 - _FORWARD_SHARE)


def lookup(model: ModelConfig, cluster: Cluster, received_R: np.ndarray) -> np.ndarray:
    """Read `received_R` rows and write them elsewhere, float64 (R,)."""
    seconds_R: np.ndarray = cluster.kernel_launch + 2 * received_R * model.dim * _FLOAT32 / cluster.lookup_bandwidth
    return seconds_R


def row_update(
    model: ModelConfig, cluster: Cluster, received_R: np.ndarray, distinct_R: np.ndarray, optimizer: SparseOptimizer
) -> np.ndarray:
    """Read `received_R` gradient rows; read and write the `distinct_R` rows they update and Adagrad's state. (R,)."""
    moved_R = (received_R + 2 * distinct_R) * model.dim * _FLOAT32
    if optimizer == "rowwise_adagrad":
        moved_R = moved_R + 2 * distinct_R * _FLOAT32
    seconds_R: np.ndarray = cluster.kernel_launch + moved_R / cluster.update_bandwidth
    return seconds_R


def dense_parameters(model: ModelConfig) -> int:
    """Replicated parameters: a layer's D x 4D and D x D projections with biases and two norms; a head of norm,
    D x D and D x 1."""
    norm = 2 * model.dim
    layer = 5 * model.dim * (model.dim + 1) + 2 * norm
    head = norm + model.dim * (model.dim + 1) + model.dim + 1
    return model.layers * layer + head


def optimizer_step(model: ModelConfig, cluster: Cluster) -> float:
    """Adam on the dense part: a pass over weights, gradients and moments."""
    return cluster.kernel_launch + _ADAM_BYTES * dense_parameters(model) / cluster.elementwise_bandwidth
