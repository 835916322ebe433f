"""Costs of one step: duration and bytes of every op on every rank, from the real lengths and rows of its global batch.

The embedding exchange is the arm's: TorchRec's arms send a row for every lookup (here), the others distinct rows
(`prioritized_costs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from repro.config import RunConfig
from repro.execution.simulated import communication, compute, contention
from repro.execution.simulated.carriers import carrier_of
from repro.execution.simulated.clusters import Cluster
from repro.execution.simulated.engine import StepCosts
from repro.execution.simulated.prioritized_costs import StepRows, beside, prioritized_costs
from repro.pipeline.ops import Op

# S samples of one global batch, R ranks

_ID_BYTES = 8
_LENGTH_BYTES = 8
_WORD_BYTES = 4
_FLOAT32 = 4
_HOST_SECONDS_PER_STEP = 6e-3
_PARTITION_SECONDS_PER_SAMPLE = 100e-9


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """One global batch, dealt to ranks. All arrays are int64 (S,), in global-batch order."""

    uih: np.ndarray
    """UIH length of each sample, capped."""
    candidates: np.ndarray
    """Candidates of each sample."""
    origin: np.ndarray
    """Rank whose reader delivered the sample."""
    rank: np.ndarray
    """Rank that trains it."""
    uih_features: int
    """Ids an event of the history carries."""
    candidate_features: int
    """Ids a candidate carries."""
    distinct_rows: float
    """Distinct rows that the batch touches, over all ranks and tables."""

    def ids(self) -> np.ndarray:
        """Ids, and therefore looked-up rows, of each sample, int64 (S,)."""
        ids: np.ndarray = self.uih * self.uih_features + self.candidates * self.candidate_features
        return ids

    def packed_bytes(self) -> np.ndarray:
        """Size of each sample on its way to another rank, int64 (S,): request id and time, an event's time and ids, a
        candidate's ids and label, in the words of `repro.balance.packing`."""
        event_words = 2 + self.uih_features
        candidate_words = self.candidate_features + 1
        packed: np.ndarray = _WORD_BYTES * (4 + event_words * self.uih + candidate_words * self.candidates)
        return packed


def step_costs(config: RunConfig, cluster: Cluster, batch: GlobalBatch, rows: StepRows | None = None) -> StepCosts:
    """Cost of every op of the plan of `config.arm`.

    Args:
        rows: what the arm's exchange moves; needed by `prioritized` and `stale`, ignored by others.
    """
    world = config.gpus
    gradient_bytes = compute.dense_parameters(config.model) * _FLOAT32
    seconds: dict[Op, np.ndarray | float] = {}
    sent: dict[Op, np.ndarray] = {}
    seconds |= _local_work(config, cluster, batch)
    seconds[Op.DENSE_ALL_REDUCE] = communication.all_reduce(cluster, world, total_bytes=gradient_bytes)
    sent[Op.DENSE_ALL_REDUCE] = np.full(world, 2 * gradient_bytes * (world - 1) / world)
    part = _balancing(config, cluster, batch)
    seconds |= part[0]
    sent |= part[1]
    if config.arm.exchange in ("prioritized", "stale"):
        assert rows is not None
        exchange = prioritized_costs(config, cluster, rows)
        seconds |= exchange.seconds
        sent |= exchange.sent
        seconds[Op.DENSE_BACKWARD] = seconds[Op.DENSE_BACKWARD] + exchange.sum_duplicates
        seconds |= _beside_exclusive_gradients(config, cluster, seconds)
    else:
        part = _embedding_exchange(config, cluster, batch)
        seconds |= part[0]
        sent |= part[1]
    return StepCosts(
        duration_ns={
            op: np.broadcast_to(np.rint(np.multiply(s, 1e9)), world).astype(np.int64) for op, s in seconds.items()
        },
        bytes={op: np.rint(sent_R).astype(np.int64) for op, sent_R in sent.items()},
        loads={
            op: contention.load(
                op,
                carrier_of(config.arm, op),
                cluster,
                world,
                sent=float(sent_R.mean()),
                seconds=float(np.max(seconds[op])),
            )
            for op, sent_R in sent.items()
        },
    )


def _beside_exclusive_gradients(
    config: RunConfig, cluster: Cluster, seconds: dict[Op, np.ndarray | float]
) -> dict[Op, np.ndarray | float]:
    """What starts as the exclusive gradients do, on another communicator, shares the network with them (A16):
    first the collision embeddings, then the dense gradients, while there is something left to share with."""
    ops = Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL, Op.COLLISION_EMBEDDING_ALL_TO_ALL, Op.DENSE_ALL_REDUCE
    exclusive, collision, dense = (float(np.max(seconds[op])) for op in ops)
    others = (collision + dense, exclusive, max(exclusive - collision, 0.0))
    return {
        op: beside(float(np.max(seconds[op])), other, _latency(config, cluster, op))
        for op, other in zip(ops, others, strict=True)
    }


def _latency(config: RunConfig, cluster: Cluster, op: Op) -> float:
    return communication.all_to_all(
        cluster, config.gpus, nic_bytes=0, nvlink_bytes=0, carrier=carrier_of(config.arm, op)
    )


def _local_work(config: RunConfig, cluster: Cluster, batch: GlobalBatch) -> dict[Op, np.ndarray | float]:
    model, world = config.model, config.gpus
    forward_R, backward_R = compute.dense(model, cluster, batch.uih, batch.candidates, batch.rank, world)
    received_R = np.full(world, float(batch.ids().sum()) / world)
    distinct_R = np.full(world, batch.distinct_rows / world)
    return {
        Op.DATA_LOAD: _HOST_SECONDS_PER_STEP,
        Op.PARTITION: _PARTITION_SECONDS_PER_SAMPLE * batch.uih.size + 2 * cluster.stream_sync,
        Op.LOOKUP: compute.lookup(model, cluster, received_R),
        Op.DENSE_FORWARD: forward_R,
        Op.DENSE_BACKWARD: backward_R,
        Op.ROW_UPDATE: compute.row_update(model, cluster, received_R, distinct_R, config.optimizer.sparse),
        Op.OPTIMIZER_STEP: compute.optimizer_step(model, cluster),
    }


Part = tuple[dict[Op, float], dict[Op, np.ndarray]]
"""Seconds of some collectives, and the bytes that leave each rank in them, (R,)."""


def _balancing(config: RunConfig, cluster: Cluster, batch: GlobalBatch) -> Part:
    """The three stages of sequence load balancing. Of the third, only samples that change rank travel."""
    world, over = config.gpus, partial(carrier_of, config.arm)
    held_R = np.bincount(batch.origin, minlength=world)
    lengths_R = 2 * _LENGTH_BYTES * held_R  # UIH length and candidate count
    composite_R = _LENGTH_BYTES * held_R
    moves = batch.origin != batch.rank
    origin, target, moved = batch.origin[moves], batch.rank[moves], batch.packed_bytes()[moves]
    crosses = origin // cluster.gpus_per_node != target // cluster.gpus_per_node
    seconds = {
        Op.LENGTHS_ALL_GATHER: communication.all_gather(
            cluster, world, total_bytes=float(lengths_R.sum()), carrier=over(Op.LENGTHS_ALL_GATHER)
        ),
        Op.CANDIDATES_ALL_GATHER: communication.all_gather(
            cluster, world, total_bytes=float(composite_R.sum()), carrier=over(Op.CANDIDATES_ALL_GATHER)
        ),
        Op.SAMPLES_ALL_TO_ALL: communication.all_to_all(
            cluster,
            world,
            nic_bytes=_busiest(origin[crosses], target[crosses], moved[crosses], world),
            nvlink_bytes=_busiest(origin[~crosses], target[~crosses], moved[~crosses], world),
            carrier=over(Op.SAMPLES_ALL_TO_ALL),
        ),
    }
    return seconds, {
        Op.LENGTHS_ALL_GATHER: lengths_R * (world - 1),
        Op.CANDIDATES_ALL_GATHER: composite_R * (world - 1),
        Op.SAMPLES_ALL_TO_ALL: np.bincount(origin, weights=moved, minlength=world),
    }


def _busiest(origin: np.ndarray, target: np.ndarray, moved: np.ndarray, world: int) -> float:
    """Most bytes any rank sends or receives."""
    sent_R = np.bincount(origin, weights=moved, minlength=world)
    received_R = np.bincount(target, weights=moved, minlength=world)
    return float(max(sent_R.max(), received_R.max()))


def _embedding_exchange(config: RunConfig, cluster: Cluster, batch: GlobalBatch) -> Part:
    """TorchRec's: split sizes and ids to the owners, rows back, gradients to the owners, a row for every lookup (A10).
    Owners receive equal shares (A11), so the rank with the most ids is the busiest one each way."""
    world = config.gpus
    ids_R = np.bincount(batch.rank, weights=batch.ids(), minlength=world)
    row_bytes = config.model.dim * _FLOAT32
    remote = (world - 1) / world
    splits_R = np.full(world, world * (batch.uih_features + batch.candidate_features) * _LENGTH_BYTES)

    def seconds(op: Op, buffer_R: np.ndarray) -> float:
        return communication.all_to_all_equal(
            cluster, world, buffer_bytes=float(buffer_R.max()), carrier=carrier_of(config.arm, op)
        )

    return {
        Op.ID_SPLITS_ALL_TO_ALL: seconds(Op.ID_SPLITS_ALL_TO_ALL, splits_R) + cluster.stream_sync,
        Op.ID_ALL_TO_ALL: seconds(Op.ID_ALL_TO_ALL, ids_R * _ID_BYTES),
        Op.EMBEDDING_ALL_TO_ALL: seconds(Op.EMBEDDING_ALL_TO_ALL, ids_R * row_bytes),
        Op.GRADIENT_ALL_TO_ALL: seconds(Op.GRADIENT_ALL_TO_ALL, ids_R * row_bytes),
    }, {
        Op.ID_SPLITS_ALL_TO_ALL: splits_R * remote,
        Op.ID_ALL_TO_ALL: ids_R * _ID_BYTES * remote,
        Op.EMBEDDING_ALL_TO_ALL: np.full(world, ids_R.sum() / world * row_bytes * remote),
        Op.GRADIENT_ALL_TO_ALL: ids_R * row_bytes * remote,
    }
