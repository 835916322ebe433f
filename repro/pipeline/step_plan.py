"""The dependency graph of one training step, shared by both executors.

The simulated executor walks it to place ops in time. The measured executor runs the same ops through
TorchRec; a test checks that what it recorded has exactly these ops and obeys these arrows.

Example (arm `torchrec`): `lookup` of step t waits for `id_all_to_all` of t, and `id_splits_all_to_all` of t waits
for `optimizer_step` of t-1, which is what makes the exchange blocking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from repro.config import Arm
from repro.pipeline.ops import Op


@dataclass(frozen=True)
class After:
    """A dependency: this op of the same step (0) or of an earlier one (-1)."""

    op: Op
    step_offset: int = 0


@dataclass(frozen=True)
class PlannedOp:
    """One op of the step and what must have ended, on the same rank, before it may start."""

    op: Op
    after: tuple[After, ...]


StepPlan = tuple[PlannedOp, ...]
"""Ops of one step in issue order; every same-step dependency stands earlier in the tuple."""


def step_plan(arm: Arm) -> StepPlan:
    """The plan of `arm`, in the order in which TorchRec's pipelines issue ops: the next batch is fetched at the head of
    the step. Where the arm balances, the batch after that is exchanged behind dense work."""
    balancing = _BALANCING if arm.partition != "identity" else _NO_BALANCING
    match arm.exchange:
        case "blocking":
            return _blocking_step(balancing)
        case "sdd":
            return _sparse_dist_step(balancing)
        case "prioritized" | "stale":
            return _prioritized_step(balancing)
    assert_never(arm.exchange)


@dataclass(frozen=True)
class _Balancing:
    """Ops of the balancing exchange, by where its hooks put them."""

    fetch: PlannedOp
    before_forward: StepPlan
    before_backward: StepPlan


_AFTER_LAST_STEP = After(Op.OPTIMIZER_STEP, -1)
_NO_BALANCING = _Balancing(PlannedOp(Op.DATA_LOAD, (_AFTER_LAST_STEP,)), (), ())
_BALANCING = _Balancing(
    fetch=PlannedOp(Op.DATA_LOAD, (_AFTER_LAST_STEP, After(Op.SAMPLES_ALL_TO_ALL, -1))),
    before_forward=(
        PlannedOp(Op.LENGTHS_ALL_GATHER, (After(Op.DATA_LOAD),)),
        PlannedOp(Op.CANDIDATES_ALL_GATHER, (After(Op.LENGTHS_ALL_GATHER), After(Op.LOOKUP))),
    ),
    before_backward=(
        PlannedOp(Op.PARTITION, (After(Op.CANDIDATES_ALL_GATHER), After(Op.DENSE_FORWARD))),
        PlannedOp(Op.SAMPLES_ALL_TO_ALL, (After(Op.PARTITION),)),
    ),
)


def _blocking_step(balancing: _Balancing) -> StepPlan:
    """TorchRec's `TrainPipelineBase`: the whole embedding exchange is on the critical path."""
    return (
        balancing.fetch,
        PlannedOp(Op.ID_SPLITS_ALL_TO_ALL, (After(Op.DATA_LOAD),)),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.ID_SPLITS_ALL_TO_ALL),)),
        PlannedOp(Op.LOOKUP, (After(Op.ID_ALL_TO_ALL),)),
        PlannedOp(Op.EMBEDDING_ALL_TO_ALL, (After(Op.LOOKUP),)),
        *balancing.before_forward,
        PlannedOp(Op.DENSE_FORWARD, (After(Op.EMBEDDING_ALL_TO_ALL),)),
        *balancing.before_backward,
        *_FUSED_BACKWARD,
    )


def _sparse_dist_step(balancing: _Balancing) -> StepPlan:
    """TorchRec's `TrainPipelineSparseDist`: the ids of t+1 travel while t computes; embeddings and gradients block."""
    return (
        balancing.fetch,
        PlannedOp(Op.ID_SPLITS_ALL_TO_ALL, (After(Op.DATA_LOAD),)),
        PlannedOp(Op.LOOKUP, (After(Op.DATA_LOAD), After(Op.ID_ALL_TO_ALL, -1))),
        PlannedOp(Op.EMBEDDING_ALL_TO_ALL, (After(Op.LOOKUP),)),
        *balancing.before_forward,
        PlannedOp(Op.DENSE_FORWARD, (After(Op.EMBEDDING_ALL_TO_ALL),)),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.ID_SPLITS_ALL_TO_ALL), After(Op.DENSE_FORWARD))),
        *balancing.before_backward,
        *_FUSED_BACKWARD,
    )


_FUSED_BACKWARD: StepPlan = (
    PlannedOp(Op.DENSE_BACKWARD, (After(Op.DENSE_FORWARD),)),
    PlannedOp(Op.GRADIENT_ALL_TO_ALL, (After(Op.DENSE_BACKWARD),)),
    PlannedOp(Op.ROW_UPDATE, (After(Op.GRADIENT_ALL_TO_ALL),)),
    PlannedOp(Op.DENSE_ALL_REDUCE, (After(Op.DENSE_BACKWARD),)),
    PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_ALL_REDUCE), After(Op.ROW_UPDATE))),
)


def _prioritized_step(balancing: _Balancing) -> StepPlan:
    """Prioritized updates (`repro.embedding.prioritized`; numbers as there). Of step t:

    - ids and collision masks are those of t+2 and of (t+1, t+2), so they are ready a step before they are needed;
    - exclusive lookup and embeddings are those of t+1, collision embeddings too; gradients and updates those of t.
    """
    return (
        balancing.fetch,
        PlannedOp(Op.ID_SPLITS_ALL_TO_ALL, (After(Op.DATA_LOAD),)),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.ID_SPLITS_ALL_TO_ALL),)),
        PlannedOp(Op.COLLISION_MASK_ALL_TO_ALL, (After(Op.ID_ALL_TO_ALL),)),
        PlannedOp(  # 3: LOOKUP is the merging of what arrived
            Op.LOOKUP,
            (
                After(Op.DATA_LOAD),
                After(Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, -1),
                After(Op.COLLISION_EMBEDDING_ALL_TO_ALL, -1),
                After(Op.COLLISION_MASK_ALL_TO_ALL, -1),
            ),
        ),
        PlannedOp(Op.EXCLUSIVE_LOOKUP, (After(Op.LOOKUP), After(Op.EXCLUSIVE_UPDATE, -1))),  # 1, 2
        PlannedOp(Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, (After(Op.EXCLUSIVE_LOOKUP),)),
        *balancing.before_forward,
        PlannedOp(Op.DENSE_FORWARD, (After(Op.LOOKUP),)),
        *balancing.before_backward,
        PlannedOp(Op.DENSE_BACKWARD, (After(Op.DENSE_FORWARD),)),
        PlannedOp(Op.COLLISION_GRADIENT_ALL_TO_ALL, (After(Op.DENSE_BACKWARD),)),  # 4
        PlannedOp(Op.COLLISION_UPDATE, (After(Op.COLLISION_GRADIENT_ALL_TO_ALL),)),
        PlannedOp(Op.COLLISION_LOOKUP, (After(Op.COLLISION_UPDATE),)),  # 5
        PlannedOp(Op.COLLISION_EMBEDDING_ALL_TO_ALL, (After(Op.COLLISION_LOOKUP),)),
        PlannedOp(Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL, (After(Op.COLLISION_LOOKUP),)),  # 6
        PlannedOp(Op.EXCLUSIVE_UPDATE, (After(Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL),)),
        PlannedOp(Op.DENSE_ALL_REDUCE, (After(Op.DENSE_BACKWARD),)),
        PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_ALL_REDUCE), After(Op.COLLISION_LOOKUP))),
    )
