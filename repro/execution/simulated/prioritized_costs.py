"""Costs of prioritized embedding updates, from the rows that each rank asks for and each owner serves.

Of step t: ids travel for t+2, masks for t+1 and t+2, embeddings for t+1, gradients for t, as the step plan says. Owners
and askers differ in load, and the busiest of either sets a collective's pace.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.config import RunConfig
from repro.execution.simulated import communication, compute
from repro.execution.simulated.carriers import carrier_of
from repro.execution.simulated.clusters import Cluster
from repro.execution.simulated.rows import RowTraffic
from repro.pipeline.ops import Op

# R ranks

_ID_BYTES = 8
_COUNT_BYTES = 8
_MASK_BYTES = 1
_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRows:
    """Rows that one step has to do with."""

    now: RowTraffic
    """Batch t, in training."""
    following: RowTraffic
    """Batch t+1: its exclusive rows travel during t, its collision rows at t's end."""
    announced: RowTraffic
    """Batch t+2: its ids travel during t."""
    lookups: np.ndarray
    """Ids of each rank in batch t, duplicates included, (R,)."""

    def with_share(self, share: float) -> StepRows:
        """The same if `share` of all rows collided; see `RowTraffic.with_share`."""
        return StepRows(
            now=self.now.with_share(share),
            following=self.following.with_share(share),
            announced=self.announced.with_share(share),
            lookups=self.lookups,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PrioritizedCosts:
    """What the exchange costs in one step."""

    seconds: dict[Op, np.ndarray]
    """(R,) or a scalar; collectives as transfer alone."""
    sent: dict[Op, np.ndarray]
    """Bytes that leave each rank, (R,); collectives only."""
    sum_duplicates: np.ndarray
    """Seconds at the end of dense backward in which gradients of a rank's equal ids are added up, (R,)."""


def prioritized_costs(config: RunConfig, cluster: Cluster, rows: StepRows) -> PrioritizedCosts:
    """Cost of every op of the exchange, of `stale` and `prioritized` alike."""
    moves = _moves(config, rows)
    remote = (config.gpus - 1) / config.gpus
    seconds = {op: np.asarray(_transfer(op, config, cluster, out_R, in_R)) for op, (out_R, in_R) in moves.items()}
    sent = {op: out_R * remote for op, (out_R, _) in moves.items()}
    seconds[Op.ID_SPLITS_ALL_TO_ALL] = seconds[Op.ID_SPLITS_ALL_TO_ALL] + cluster.stream_sync
    return PrioritizedCosts(
        seconds=seconds | _local(config, cluster, rows),
        sent=sent,
        sum_duplicates=(rows.lookups + 2 * rows.now.asked) * config.model.dim * _FLOAT32 / cluster.update_bandwidth,
    )


def beside(first: float, second: float, latency: float) -> float:
    """Duration of a collective of `first` seconds when one of `second` seconds starts beside it: until the shorter one
    has moved its bytes both move at half speed. Latencies are not shared."""
    return first + max(0.0, min(first, second) - latency)


Moves = dict[Op, tuple[np.ndarray, np.ndarray]]
"""Bytes that leave and that reach each rank in a collective, its own share included, (R,) each."""


def _moves(config: RunConfig, rows: StepRows) -> Moves:
    row = config.model.dim * _FLOAT32
    now, following, announced = rows.now, rows.following, rows.announced
    counts_R = np.full(config.gpus, float(config.gpus * _COUNT_BYTES))
    masks_out_R = _MASK_BYTES * (following.served + announced.served)
    masks_in_R = _MASK_BYTES * (following.asked + announced.asked)
    return {
        Op.ID_SPLITS_ALL_TO_ALL: (counts_R, counts_R),
        Op.ID_ALL_TO_ALL: (_ID_BYTES * announced.asked, _ID_BYTES * announced.served),
        Op.COLLISION_MASK_ALL_TO_ALL: (masks_out_R, masks_in_R),
        Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL: (
            row * (following.served - following.served_late),
            row * (following.asked - following.asked_late),
        ),
        Op.COLLISION_GRADIENT_ALL_TO_ALL: (row * now.asked_urgent, row * now.served_urgent),
        Op.COLLISION_EMBEDDING_ALL_TO_ALL: (row * following.served_late, row * following.asked_late),
        Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL: (
            row * (now.asked - now.asked_urgent),
            row * (now.served - now.served_urgent),
        ),
    }


def _transfer(op: Op, config: RunConfig, cluster: Cluster, out_R: np.ndarray, in_R: np.ndarray) -> float:
    """AllToAll with equal parts for all peers, at the pace of the rank that sends or receives most."""
    largest = float(max(out_R.max(), in_R.max()))
    return communication.all_to_all_equal(
        cluster, config.gpus, buffer_bytes=largest, carrier=carrier_of(config.arm, op)
    )


def _local(config: RunConfig, cluster: Cluster, rows: StepRows) -> dict[Op, np.ndarray]:
    model, sparse = config.model, config.optimizer.sparse
    now, following = rows.now, rows.following
    exclusive_R = now.served - now.served_urgent
    return {
        # Merge what came early and late, then one row for each lookup.
        Op.LOOKUP: cluster.kernel_launch + compute.lookup(model, cluster, now.asked + rows.lookups),
        Op.EXCLUSIVE_LOOKUP: compute.lookup(model, cluster, following.served - following.served_late),
        Op.COLLISION_UPDATE: compute.row_update(model, cluster, now.served_urgent, now.owned_urgent, sparse),
        Op.COLLISION_LOOKUP: compute.lookup(model, cluster, following.served_late),
        Op.EXCLUSIVE_UPDATE: compute.row_update(model, cluster, exclusive_R, now.owned - now.owned_urgent, sparse),
    }
