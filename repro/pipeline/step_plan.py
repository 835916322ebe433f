"""The dependency graph of one training step, shared by both executors.

The simulated executor walks it to place ops in time. The measured executor runs the same ops through
TorchRec; a test checks that what it recorded has exactly these ops and obeys these arrows.

Example (arm `torchrec`): `lookup` of step t waits for `id_all_to_all` of t, and `id_splits_all_to_all` of t waits
for `optimizer_step` of t-1, which is what makes the exchange blocking.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """The plan of `arm`, in the order in which TorchRec's `TrainPipelineBase.progress` issues ops: the next batch is
    fetched at the head of the step. Where the arm balances, the batch after that is exchanged behind dense work."""
    if arm.partition == "identity":
        return _torchrec_step(DATA_LOAD, before_forward=(), before_backward=())
    return _torchrec_step(
        PlannedOp(Op.DATA_LOAD, (*DATA_LOAD.after, After(Op.SAMPLES_ALL_TO_ALL, -1))),
        before_forward=(
            PlannedOp(Op.LENGTHS_ALL_GATHER, (After(Op.DATA_LOAD),)),
            PlannedOp(Op.CANDIDATES_ALL_GATHER, (After(Op.LENGTHS_ALL_GATHER), After(Op.EMBEDDING_ALL_TO_ALL))),
        ),
        before_backward=(
            PlannedOp(Op.PARTITION, (After(Op.CANDIDATES_ALL_GATHER), After(Op.DENSE_FORWARD))),
            PlannedOp(Op.SAMPLES_ALL_TO_ALL, (After(Op.PARTITION),)),
        ),
    )


DATA_LOAD = PlannedOp(Op.DATA_LOAD, (After(Op.OPTIMIZER_STEP, -1),))


def _torchrec_step(fetch: PlannedOp, before_forward: StepPlan, before_backward: StepPlan) -> StepPlan:
    """TorchRec's step with its blocking embedding exchange."""
    return (
        fetch,
        PlannedOp(Op.ID_SPLITS_ALL_TO_ALL, (After(Op.DATA_LOAD),)),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.ID_SPLITS_ALL_TO_ALL),)),
        PlannedOp(Op.LOOKUP, (After(Op.ID_ALL_TO_ALL),)),
        PlannedOp(Op.EMBEDDING_ALL_TO_ALL, (After(Op.LOOKUP),)),
        *before_forward,
        PlannedOp(Op.DENSE_FORWARD, (After(Op.EMBEDDING_ALL_TO_ALL),)),
        *before_backward,
        PlannedOp(Op.DENSE_BACKWARD, (After(Op.DENSE_FORWARD),)),
        PlannedOp(Op.GRADIENT_ALL_TO_ALL, (After(Op.DENSE_BACKWARD),)),
        PlannedOp(Op.ROW_UPDATE, (After(Op.GRADIENT_ALL_TO_ALL),)),
        PlannedOp(Op.DENSE_ALL_REDUCE, (After(Op.DENSE_BACKWARD),)),
        PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_ALL_REDUCE), After(Op.ROW_UPDATE))),
    )
