"""What a collective takes from compute beside it, and how much longer that compute then takes.

Two resources, each with its own time. NCCL's kernels hold streaming multiprocessors from the moment a rank arrives,
since they spin until the last one does. Its copies take memory bandwidth only while bytes move. Compute then runs at

    (1 - SMs held / all SMs) x (1 - passes x collective's bytes a second / HBM bandwidth)

of its speed, with a collective's bytes sent plus received. Collectives side by side add up. The host ring holds no SM
and passes memory once.

Example, `h100_paper`: beside an AllToAll of 23.5 GB/s each way compute takes 1.19 times as long while bytes move and
1.14 times as long while the kernel spins; beside the host ring at 15 GB/s, 1.01 times. Assumptions A13, A20, A22.

Sources: NCCL's grids on H100 (AllGather 24 CTAs, NVIDIA forum 337991; send and receive 16, nccl#1598; NVLS AllReduce
16, src/transport/nvls.cc), one CTA an SM (nccl#1656). None of it is fitted to anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np

from repro.execution.simulated.carriers import Carrier
from repro.execution.simulated.clusters import Cluster
from repro.pipeline.ops import Op

# K collectives of a run, R ranks, C cuts of a rank's time

_GATHERS = frozenset({Op.LENGTHS_ALL_GATHER, Op.CANDIDATES_ALL_GATHER})
_ALL_GATHER_SMS, _ALL_REDUCE_SMS, _ALL_TO_ALL_SMS = 24, 16, 16
_PASSES_THROUGH_NETWORK = 3.0
"""Times NCCL moves a byte through HBM on its way between nodes: buffer, staging FIFO, NIC."""
_FULL_SPEED = 1 << 20
"""Speeds are integers of this: progress is then exact, and no rounding depends on what else was cut where."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one collective takes from a GPU, as shares, 0 <= share < 1."""

    sms: float
    """Of the SMs, from a rank's arrival to the end."""
    memory: float
    """Of HBM bandwidth, from the last arrival to the end."""


def load(op: Op, carrier: Carrier, cluster: Cluster, world: int, *, sent: float, seconds: float) -> Load:
    """Load of a collective.

    Args:
        sent: bytes that leave a rank; as many are taken to arrive.
        seconds: its transfer, once all ranks have arrived.
    """
    if world == 1:
        return Load(sms=0.0, memory=0.0)
    moved = 2 * sent / seconds / cluster.hbm_bandwidth
    match carrier:
        case "host_ring":
            return Load(sms=0.0, memory=moved)
        case "process_group":
            copies = world > cluster.gpus_per_node and op is not Op.DENSE_ALL_REDUCE
            return Load(sms=_sms(op) / cluster.sms, memory=(_PASSES_THROUGH_NETWORK if copies else 1.0) * moved)
    assert_never(carrier)


def _sms(op: Op) -> int:
    if op in _GATHERS:
        return _ALL_GATHER_SMS
    return _ALL_REDUCE_SMS if op is Op.DENSE_ALL_REDUCE else _ALL_TO_ALL_SMS


class Busy:
    """When the collectives of a run are in flight on each rank, as far as it has been placed."""

    def __init__(self, loads: list[Mapping[Op, Load]], ranks: int) -> None:
        """
        Args:
            loads: of every step.
        """
        self._index = {(step, op): k for k, (step, op) in enumerate((t, op) for t, of in enumerate(loads) for op in of)}
        every = [of[op] for of in loads for op in of]
        self._sms_K = np.array([one.sms for one in every])
        self._memory_K = np.array([one.memory for one in every])
        self._begin_KR = np.zeros((len(every), ranks), dtype=np.int64)
        self._first_K, self._moving_K, self._end_K = (np.full(len(every), -1, dtype=np.int64) for _ in range(3))
        by_lane: dict[str, Load] = {}
        for (_, op), one in zip(self._index, every, strict=True):
            worst = by_lane.get(op.lane, one)
            by_lane[op.lane] = Load(sms=max(worst.sms, one.sms), memory=max(worst.memory, one.memory))
        # A lane runs one collective at a time.
        self._slowest = (1 - sum(one.sms for one in by_lane.values())) * (
            1 - sum(one.memory for one in by_lane.values())
        )

    def note(self, step: int, op: Op, begin_R: np.ndarray, moving: int, end: int) -> bool:
        """A collective was placed, or placed anew; whether that changed anything. Ops without a load are ignored.

        Args:
            begin_R: each rank's arrival, int64 (R,).
            moving: the last of them.
            end: common to all ranks.
        """
        k = self._index.get((step, op))
        if k is None or (self._end_K[k] == end and np.array_equal(self._begin_KR[k], begin_R)):
            return False
        self._begin_KR[k] = begin_R
        self._first_K[k], self._moving_K[k], self._end_K[k] = begin_R.min(), moving, end
        return True

    def end_of(self, start_R: np.ndarray, work_R: np.ndarray) -> np.ndarray:
        """When compute ends that starts at `start_R` and takes `work_R` alone, int64 (R,), nanoseconds, rounded up."""
        alone_R = start_R + work_R
        near = self._end_K > start_R.min()
        near &= self._first_K < start_R.max() + work_R.max() / self._slowest
        if not near.any():
            return alone_R
        begin_KR = self._begin_KR[near] - start_R
        moving_KR, end_KR = (at_K[near][:, None] - start_R for at_K in (self._moving_K, self._end_K))
        cuts_CR = np.sort(np.maximum(np.concatenate([begin_KR, moving_KR, end_KR, 0 * begin_KR[:1]]), 0), axis=0)
        at_CKR, until_KR = cuts_CR[:, None], end_KR > cuts_CR[:, None]
        sms_CR = np.einsum("k,ckr->cr", self._sms_K[near], until_KR & (begin_KR <= at_CKR))
        memory_CR = np.einsum("k,ckr->cr", self._memory_K[near], until_KR & (moving_KR <= at_CKR))
        speed_CR = np.rint(_FULL_SPEED * (1 - sms_CR) * (1 - memory_CR)).astype(np.int64)
        done_CR = np.zeros_like(cuts_CR)
        np.cumsum(np.diff(cuts_CR, axis=0) * speed_CR[:-1], axis=0, out=done_CR[1:])
        wanted_R = _FULL_SPEED * work_R
        last_R = (done_CR <= wanted_R).sum(axis=0) - 1
        ranks = np.arange(start_R.size)
        left_R = -((done_CR[last_R, ranks] - wanted_R) // speed_CR[last_R, ranks])
        end_R: np.ndarray = start_R + cuts_CR[last_R, ranks] + left_R
        return end_R
