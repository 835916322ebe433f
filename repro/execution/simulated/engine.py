"""Max-plus engine: places the ops of a step plan in time, on all ranks at once.

An op starts on a rank when everything it waits for has ended there and its lane is free; a lane runs its ops in issue
order, step after step. A collective begins to move once the last rank has arrived, and ends on all ranks together.
So starts are maxima and ends are sums: no event queue, passes over (step, op) in issue order, vectorised over ranks.

Compute beside a collective takes longer (`repro.execution.simulated.contention`), by the time they really share. Of
collectives issued before it, a pass knows when they run; of those issued after it, it takes what the pass before found,
and passes are made until one changes nothing. That ends, at the one schedule there is: a collective slows only what
runs after it began, so each pass is right for longer than the one before. Two passes do where all that runs beside
compute was issued before it, which is nearly everywhere; without loads, one does.

Example: two ranks compute 4 and 8 ns, then a collective takes 2 ns. Rank 0 arrives at 4, rank 1 at 8; both leave at 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from repro.errors import RunError
from repro.execution.simulated.contention import Busy, Load
from repro.pipeline.ops import Lane, Op
from repro.pipeline.step_plan import StepPlan
from repro.timeline.schema import NO_COLLECTIVE, Span, Timeline

# T steps, R ranks

_MOST_PASSES = 1000
"""Far more than the handful that any plan takes."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """What one step costs on each rank; every op of the plan is a key of `duration_ns`."""

    duration_ns: dict[Op, np.ndarray]
    """int64 (R,). Of a collective: the transfer alone; its slowest rank decides. Of compute: alone on the GPU."""
    bytes: dict[Op, np.ndarray]
    """Bytes that leave each rank, int64 (R,); collectives only."""
    loads: Mapping[Op, Load] = field(default_factory=dict)
    """What collectives take from compute beside them; nothing, where there is no entry."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """When each op ran, nanoseconds from the start of the run."""

    start_ns: dict[Op, np.ndarray]
    """int64 (T, R). Of a collective: the rank's own arrival."""
    end_ns: dict[Op, np.ndarray]
    """int64 (T, R)."""


def place(plan: StepPlan, costs: Sequence[StepCosts]) -> Placement:
    """Run the plan once for each entry of `costs`.

    Raises:
        RunError: the plan names a dependency that it does not issue earlier; or a bug here, passes did not settle.
    """
    _check_order(plan)
    ranks = next(iter(costs[0].duration_ns.values())).size
    busy = Busy([cost.loads for cost in costs], ranks)
    for _ in range(_MOST_PASSES):
        placement, changed = _pass(plan, costs, ranks, busy)
        if not changed:
            return placement
    raise RunError("simulated contention did not settle")


def _pass(plan: StepPlan, costs: Sequence[StepCosts], ranks: int, busy: Busy) -> tuple[Placement, bool]:
    """One pass in issue order; whether it moved any collective that takes something from compute."""
    steps, changed = len(costs), False
    start = {planned.op: np.zeros((steps, ranks), dtype=np.int64) for planned in plan}
    end = {planned.op: np.zeros((steps, ranks), dtype=np.int64) for planned in plan}
    lane_free: dict[Lane, np.ndarray] = {planned.op.lane: np.zeros(ranks, dtype=np.int64) for planned in plan}
    for step, cost in enumerate(costs):
        for planned in plan:
            op = planned.op
            ready_R = lane_free[op.lane]
            for after in planned.after:
                if step + after.step_offset >= 0:
                    ready_R = np.maximum(ready_R, end[after.op][step + after.step_offset])
            duration_R = cost.duration_ns[op]
            if op.category == "communication":
                moving = int(ready_R.max())
                ended = moving + int(duration_R.max())
                changed |= busy.note(step, op, ready_R, moving, ended)
                end_R = np.full(ranks, ended, dtype=np.int64)
            elif op.category == "compute":
                end_R = busy.end_of(ready_R, duration_R)
            else:
                end_R = ready_R + duration_R
            start[op][step], end[op][step], lane_free[op.lane] = ready_R, end_R, end_R
    return Placement(start_ns=start, end_ns=end), changed


def _check_order(plan: StepPlan) -> None:
    issued: set[Op] = set()
    planned_ops = {planned.op for planned in plan}
    for planned in plan:
        for after in planned.after:
            known = after.op in issued if after.step_offset == 0 else after.op in planned_ops and after.step_offset < 0
            if not known:
                raise RunError(
                    f"step plan: {planned.op.label} waits for {after.op.label}, which is not issued before it"
                )
        issued.add(planned.op)


def to_timeline(
    plan: StepPlan, placement: Placement, costs: Sequence[StepCosts], *, run_id: str, transports: Mapping[Op, str]
) -> Timeline:
    """Spans of a placement, one for every (step, rank, op); mode `simulated`.

    Args:
        transports: name of what carries each collective.
    """
    beside_compute = may_run_beside_compute(plan)
    collectives = [planned.op for planned in plan if planned.op.category == "communication"]
    spans: list[Span] = []
    for op in (planned.op for planned in plan):
        moves = op in collectives
        starts, ends = placement.start_ns[op].tolist(), placement.end_ns[op].tolist()
        for step, cost in enumerate(costs):
            nothing = [0] * len(starts[step])
            sent = cost.bytes[op].tolist() if moves else nothing
            alone = cost.duration_ns[op].tolist() if op.category == "compute" else nothing
            spans.extend(
                Span(
                    step=step,
                    rank=rank,
                    lane=op.lane,
                    op=op.label,
                    category=op.category,
                    start_ns=begin,
                    duration_ns=finish - begin,
                    bytes=sent[rank],
                    transport=transports[op] if moves else "",
                    collective=collectives.index(op) if moves else NO_COLLECTIVE,
                    overlap_allowed=op in beside_compute,
                    reference_ns=alone[rank],
                )
                for rank, (begin, finish) in enumerate(zip(starts[step], ends[step], strict=True))
            )
    return Timeline(spans, run=run_id, mode="simulated")


def may_run_beside_compute(plan: StepPlan) -> frozenset[Op]:
    """Collectives that some compute op neither waits for nor is waited for by, over as many steps as the plan spans."""
    reach = 1 + max((-after.step_offset for planned in plan for after in planned.after), default=0)
    ancestors: dict[tuple[int, Op], set[tuple[int, Op]]] = {}
    for step in range(2 * reach + 1):
        for planned in plan:
            mine: set[tuple[int, Op]] = set()
            for after in planned.after:
                parent = (step + after.step_offset, after.op)
                if parent in ancestors:
                    mine |= {parent} | ancestors[parent]
            ancestors[step, planned.op] = mine
    compute = [node for node in ancestors if node[1].lane == "compute"]
    return frozenset(
        op
        for op in (planned.op for planned in plan if planned.op.category == "communication")
        if any(node not in ancestors[reach, op] and (reach, op) not in ancestors[node] for node in compute)
    )
