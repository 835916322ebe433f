"""Without this the engine could place ops too early, too late or on the wrong rank, or slow compute for longer than a
collective is beside it, and every simulated number would be wrong while the ledger still adds up. Not covered: whether
the step plan, the durations and the loads are right."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.config import Arm
from repro.errors import RunError
from repro.execution.simulated.contention import Load
from repro.execution.simulated.engine import Placement, StepCosts, may_run_beside_compute, place, to_timeline
from repro.pipeline.ops import Op
from repro.pipeline.step_plan import After, PlannedOp, StepPlan, step_plan
from repro.timeline.ledger import build_ledger

PLANS = [step_plan(Arm(name="torchrec")), step_plan(Arm(name="balance", partition="fbs"))]


def costs_of(durations: dict[Op, list[int]]) -> StepCosts:
    """`durations`: nanoseconds on each rank."""
    as_arrays = {op: np.array(value, dtype=np.int64) for op, value in durations.items()}
    return StepCosts(duration_ns=as_arrays, bytes={op: np.zeros_like(value) for op, value in as_arrays.items()})


def loaded(cost: StepCosts, loads: Mapping[Op, Load]) -> StepCosts:
    return replace(cost, loads=loads)


HALF = Load(sms=0.5, memory=0.0)
"""Compute beside it takes twice as long, from arrival on."""
QUARTER_MOVING = Load(sms=0.0, memory=0.25)
"""Compute beside it runs at three quarters of its speed while bytes move."""


def random_costs(plan: StepPlan, *, steps: int, ranks: int, seed: int) -> list[StepCosts]:
    generator = np.random.default_rng(seed)
    return [costs_of({planned.op: generator.integers(0, 9, ranks).tolist() for planned in plan}) for _ in range(steps)]


def test_two_ranks_by_hand():
    """Rank 1 has twice the work; the AllReduce (2 ns) starts when it arrives, and the next step's load overlaps it."""
    plan = (
        PlannedOp(Op.DATA_LOAD, ()),
        PlannedOp(Op.DENSE_FORWARD, (After(Op.DATA_LOAD), After(Op.OPTIMIZER_STEP, -1))),
        PlannedOp(Op.DENSE_ALL_REDUCE, (After(Op.DENSE_FORWARD),)),
        PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_ALL_REDUCE),)),
    )
    step = costs_of(
        {
            Op.DATA_LOAD: [3, 3],
            Op.DENSE_FORWARD: [4, 8],
            Op.DENSE_ALL_REDUCE: [2, 2],
            Op.OPTIMIZER_STEP: [1, 1],
        }
    )
    placed = place(plan, [step, step])
    assert placed.start_ns[Op.DATA_LOAD].tolist() == [[0, 0], [3, 3]]
    assert placed.start_ns[Op.DENSE_FORWARD].tolist() == [[3, 3], [14, 14]]
    assert placed.start_ns[Op.DENSE_ALL_REDUCE].tolist() == [[7, 11], [18, 22]]
    assert placed.end_ns[Op.DENSE_ALL_REDUCE].tolist() == [[13, 13], [24, 24]]
    assert placed.end_ns[Op.OPTIMIZER_STEP].tolist() == [[14, 14], [25, 25]]


def test_a_lane_runs_one_op_at_a_time_in_issue_order():
    plan = (PlannedOp(Op.LOOKUP, ()), PlannedOp(Op.DENSE_FORWARD, ()), PlannedOp(Op.DATA_LOAD, ()))
    placed = place(plan, [costs_of({Op.LOOKUP: [5], Op.DENSE_FORWARD: [2], Op.DATA_LOAD: [1]})])
    assert placed.start_ns[Op.DENSE_FORWARD].tolist() == [[5]]
    assert placed.start_ns[Op.DATA_LOAD].tolist() == [[0]]


def test_a_dependency_that_is_not_issued_before_is_refused():
    plan = (PlannedOp(Op.LOOKUP, (After(Op.ID_ALL_TO_ALL),)), PlannedOp(Op.ID_ALL_TO_ALL, ()))
    with pytest.raises(RunError, match="lookup waits for id_all_to_all"):
        place(plan, [costs_of({Op.LOOKUP: [1], Op.ID_ALL_TO_ALL: [1]})])


@pytest.mark.parametrize("plan", PLANS)
def test_relabelling_ranks_permutes_times(plan):
    order = np.array([2, 0, 4, 3, 1])
    costs = random_costs(plan, steps=3, ranks=5, seed=1)
    relabelled = [
        costs_of({op: duration[order].tolist() for op, duration in cost.duration_ns.items()}) for cost in costs
    ]
    before, after = place(plan, costs), place(plan, relabelled)
    for op in (planned.op for planned in plan):
        np.testing.assert_array_equal(before.start_ns[op][:, order], after.start_ns[op])
        np.testing.assert_array_equal(before.end_ns[op][:, order], after.end_ns[op])


@pytest.mark.parametrize("plan", PLANS)
def test_scaling_durations_scales_times(plan):
    costs = random_costs(plan, steps=3, ranks=4, seed=2)
    scaled = [costs_of({op: (7 * d).tolist() for op, d in cost.duration_ns.items()}) for cost in costs]
    before, after = place(plan, costs), place(plan, scaled)
    for op in (planned.op for planned in plan):
        np.testing.assert_array_equal(7 * before.end_ns[op], after.end_ns[op])


@pytest.mark.parametrize("plan", PLANS)
def test_ledger_conserves_and_obeys_the_arrows(plan):
    costs = random_costs(plan, steps=4, ranks=3, seed=3)
    placed = place(plan, costs)
    timeline = to_timeline(plan, placed, costs, run_id="r", transports=names(plan, "t"))
    assert len(timeline.spans) == 4 * 3 * len(plan)
    ledger = build_ledger(timeline)  # raises unless the parts sum to the windows
    assert ledger.window_ns.sum() == placed.end_ns[Op.OPTIMIZER_STEP].max()
    for planned in plan:
        for after in planned.after:
            first = -after.step_offset
            earlier, later = placed.end_ns[after.op][: 4 - first], placed.start_ns[planned.op][first:]
            assert (earlier <= later).all()


def test_collectives_are_numbered_alike_on_all_ranks_and_carry_bytes_and_transport():
    plan = PLANS[0]
    costs = random_costs(plan, steps=2, ranks=3, seed=4)
    costs[1].bytes[Op.ID_ALL_TO_ALL][:] = [10, 20, 30]
    over = names(plan, "wire") | {Op.DENSE_ALL_REDUCE: "adds"}
    timeline = to_timeline(plan, place(plan, costs), costs, run_id="r", transports=over)
    assert {s.transport for s in timeline.spans if s.op == "dense_all_reduce"} == {"adds"}
    numbers = {op.label: {s.collective for s in timeline.spans if s.op == op.label} for op in Op}
    used = [number for op in Op if op.category == "communication" for number in numbers[op.label]]
    assert sorted(used) == list(range(len(used)))
    assert numbers[Op.LOOKUP.label] == {-1}
    ids = [s for s in timeline.spans if s.op == "id_all_to_all" and s.step == 1]
    assert [(s.rank, s.bytes, s.transport) for s in ids] == [(0, 10, "wire"), (1, 20, "wire"), (2, 30, "wire")]


def names(plan: StepPlan, name: str) -> dict[Op, str]:
    return dict.fromkeys((planned.op for planned in plan), name)


SIDE_BY_SIDE = (PlannedOp(Op.ID_ALL_TO_ALL, ()), PlannedOp(Op.DENSE_FORWARD, ()))
"""A collective and compute that start together."""


def test_compute_is_slowed_by_the_time_it_shares_and_by_no_more():
    """10 ns of a collective leave 5 ns of 12 done; the other 7 run alone: 17 in all. Compute of 4 ns takes 8."""
    step = costs_of({Op.ID_ALL_TO_ALL: [10, 10], Op.DENSE_FORWARD: [12, 4]})
    placed = place(SIDE_BY_SIDE, [loaded(step, {Op.ID_ALL_TO_ALL: HALF})])
    assert placed.end_ns[Op.DENSE_FORWARD].tolist() == [[17, 8]]
    assert placed.end_ns[Op.ID_ALL_TO_ALL].tolist() == [[10, 10]]


def test_a_rank_that_waits_in_a_collective_holds_sms_but_moves_nothing():
    """Rank 1 looks up for 8 ns before it arrives; 8 ns of transfer follow. Rank 0 arrives at once and computes 9 ns
    beside it: SMs held over 0..16 halve 8 of them by 16. Memory taken over 8..16 costs it a quarter from 8 on."""
    plan = (
        PlannedOp(Op.LOOKUP, ()),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.LOOKUP),)),
        PlannedOp(Op.DENSE_FORWARD, (After(Op.LOOKUP),)),
    )
    step = costs_of({Op.LOOKUP: [0, 8], Op.ID_ALL_TO_ALL: [8, 8], Op.DENSE_FORWARD: [9, 0]})
    for load, end in ((HALF, 17), (QUARTER_MOVING, 10), (Load(sms=0.5, memory=0.25), 18)):
        placed = place(plan, [loaded(step, {Op.ID_ALL_TO_ALL: load})])
        assert placed.end_ns[Op.DENSE_FORWARD][0, 0] == end, load


def test_collectives_of_two_lanes_slow_together():
    """Shares of the SMs add up: beside both 1/4 of the speed, then 1/2, then all of it."""
    plan = (PlannedOp(Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, ()), *SIDE_BY_SIDE)
    step = costs_of({Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL: [8], Op.ID_ALL_TO_ALL: [4], Op.DENSE_FORWARD: [5]})
    quarter = Load(sms=0.25, memory=0.0)
    loads = {Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL: HALF, Op.ID_ALL_TO_ALL: quarter}
    assert place(plan, [loaded(step, loads)]).end_ns[Op.DENSE_FORWARD].tolist() == [[10]]  # 4/4 + 4/2 + 2


def test_a_collective_that_is_issued_later_slows_too():
    """The row update is issued first; the AllReduce begins beside it and so does the next op wait for it longer."""
    plan = (
        PlannedOp(Op.ROW_UPDATE, ()),
        PlannedOp(Op.DENSE_ALL_REDUCE, ()),
        PlannedOp(Op.OPTIMIZER_STEP, (After(Op.ROW_UPDATE), After(Op.DENSE_ALL_REDUCE))),
    )
    step = costs_of({Op.ROW_UPDATE: [6], Op.DENSE_ALL_REDUCE: [4], Op.OPTIMIZER_STEP: [1]})
    placed = place(plan, [loaded(step, {Op.DENSE_ALL_REDUCE: HALF})])
    assert placed.end_ns[Op.ROW_UPDATE].tolist() == [[8]]
    assert placed.end_ns[Op.OPTIMIZER_STEP].tolist() == [[9]]


def test_rounding_is_up_to_whole_nanoseconds():
    step = costs_of({Op.ID_ALL_TO_ALL: [100], Op.DENSE_FORWARD: [10]})
    placed = place(SIDE_BY_SIDE, [loaded(step, {Op.ID_ALL_TO_ALL: Load(sms=0.0, memory=0.25)})])
    assert placed.end_ns[Op.DENSE_FORWARD].tolist() == [[14]]  # 13.33


def test_host_and_background_work_are_not_slowed():
    plan = (PlannedOp(Op.ID_ALL_TO_ALL, ()), PlannedOp(Op.DATA_LOAD, ()), PlannedOp(Op.EXCLUSIVE_LOOKUP, ()))
    step = costs_of({Op.ID_ALL_TO_ALL: [10], Op.DATA_LOAD: [5], Op.EXCLUSIVE_LOOKUP: [5]})
    placed = place(plan, [loaded(step, {Op.ID_ALL_TO_ALL: HALF})])
    assert [placed.end_ns[op].tolist() for op in (Op.DATA_LOAD, Op.EXCLUSIVE_LOOKUP)] == [[[5]], [[5]]]


@pytest.mark.parametrize("plan", PLANS)
def test_where_nothing_shares_the_gpu_loads_change_nothing(plan):
    """Every op waits for the one before it."""
    ops = [planned.op for planned in plan]
    last = After(ops[-1], -1)
    chain = tuple(PlannedOp(op, (After(ops[i - 1]) if i else last,)) for i, op in enumerate(ops))
    costs = random_costs(chain, steps=3, ranks=1, seed=5)
    heavy = [loaded(cost, {op: Load(sms=0.9, memory=0.9) for op in ops if op.category == "communication"})
             for cost in costs]  # fmt: skip
    before, after = place(chain, costs), place(chain, heavy)
    for op in ops:
        np.testing.assert_array_equal(before.start_ns[op], after.start_ns[op])
        np.testing.assert_array_equal(before.end_ns[op], after.end_ns[op])
    spans = [to_timeline(chain, placed, costs, run_id="r", transports=names(chain, "t")).spans
             for placed in (before, after)]  # fmt: skip
    assert spans[0] == spans[1]


def test_the_ledger_books_the_stretch_as_contention():
    plan = (*SIDE_BY_SIDE, PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_FORWARD),)))
    step = costs_of({Op.ID_ALL_TO_ALL: [10], Op.DENSE_FORWARD: [12], Op.OPTIMIZER_STEP: [3]})
    costs = [loaded(step, {Op.ID_ALL_TO_ALL: HALF})]
    ledger = build_ledger(to_timeline(plan, place(plan, costs), costs, run_id="r", transports=names(plan, "t")))
    assert ledger.part("contention").tolist() == [[5]]
    assert ledger.part("useful_compute").tolist() == [[15]]
    assert ledger.window_ns.tolist() == [20]


def test_only_the_all_reduce_may_run_beside_compute_when_the_exchange_blocks():
    """It and the row update both follow the backward pass and neither waits for the other."""
    assert may_run_beside_compute(PLANS[0]) == {Op.DENSE_ALL_REDUCE}


def test_prefetched_ids_may_run_beside_compute():
    plan = (
        PlannedOp(Op.DENSE_FORWARD, (After(Op.OPTIMIZER_STEP, -1), After(Op.ID_ALL_TO_ALL, -1))),
        PlannedOp(Op.ID_ALL_TO_ALL, (After(Op.OPTIMIZER_STEP, -1),)),
        PlannedOp(Op.OPTIMIZER_STEP, (After(Op.DENSE_FORWARD),)),
    )
    assert may_run_beside_compute(plan) == {Op.ID_ALL_TO_ALL}


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    """Plans of 1 to 6 ops in any order, with any arrows that point back."""
    ops = draw(st.lists(st.sampled_from(list(Op)), min_size=1, max_size=6, unique=True))
    plan = []
    for index, op in enumerate(ops):
        same_step = [After(other) for other in ops[:index]]
        earlier_step = [After(other, offset) for other in ops for offset in (-1, -2)]
        arrows = draw(st.lists(st.sampled_from(same_step + earlier_step), max_size=3, unique=True))
        plan.append(PlannedOp(op, tuple(arrows)))
    return tuple(plan)


@settings(max_examples=150, deadline=None)
@given(plan=plans(), ranks=st.integers(1, 3), steps=st.integers(1, 3), seed=st.integers(0, 10**6), slows=st.booleans())
def test_max_plus_equals_an_event_simulation(plan, ranks, steps, seed, slows):
    costs = random_costs(plan, steps=steps, ranks=ranks, seed=seed)
    if slows:
        eighths = np.random.default_rng(seed).integers(0, 4, (len(plan), 2)) / 8
        loads = {
            planned.op: Load(sms=sms, memory=memory)
            for planned, (sms, memory) in zip(plan, eighths, strict=True)
            if planned.op.category == "communication"
        }
        costs = [loaded(cost, loads) for cost in costs]
    placed = place(plan, costs)
    start, end = event_simulation(plan, costs, ranks)
    for step in range(steps):
        for op in (planned.op for planned in plan):
            assert placed.start_ns[op][step].tolist() == [start[step, op, rank] for rank in range(ranks)]
            assert placed.end_ns[op][step].tolist() == [end[step, op, rank] for rank in range(ranks)]


Times = dict[tuple[int, Op, int], int]


def event_simulation(plan: StepPlan, costs: list[StepCosts], ranks: int) -> tuple[Times, Times]:
    """The same in the plainest way: a clock that ticks, and queues of ops for every lane of every rank. In a tick,
    compute gets as much done as the collectives in flight on its rank leave it."""
    queues = {
        (rank, lane): [(step, p) for step in range(len(costs)) for p in plan if p.op.lane == lane]
        for rank in range(ranks)
        for lane in {p.op.lane for p in plan}
    }
    start: Times = {}
    end: Times = {}
    left: dict[tuple[int, Op, int], float] = {}
    now = 0
    while any(queues.values()):
        progressed = True
        while progressed:  # ops of no duration let others start within the same tick
            progressed = False
            for (rank, _lane), queue in queues.items():
                if not queue:
                    continue
                step, planned = queue[0]
                key = (step, planned.op, rank)
                if key not in start:
                    needs = [(step + a.step_offset, a.op, rank) for a in planned.after if step + a.step_offset >= 0]
                    if all(need in end and end[need] <= now for need in needs):
                        start[key] = now
                        progressed = True
                        work = int(costs[step].duration_ns[planned.op][rank])
                        if planned.op.category == "compute" and work:
                            left[key] = work
                        elif planned.op.category != "communication":
                            end[key] = now + work
                        elif all((step, planned.op, peer) in start for peer in range(ranks)):
                            transfer = int(costs[step].duration_ns[planned.op].max())
                            end |= {(step, planned.op, peer): now + transfer for peer in range(ranks)}
                if key in end and end[key] <= now:
                    queue.pop(0)
                    progressed = True
        for key in list(left):
            left[key] -= speed_beside(key[2], now, costs, start, end)
            if left[key] <= 0:
                del left[key]
                end[key] = now + 1
        now += 1
    return start, end


def speed_beside(rank: int, now: int, costs: list[StepCosts], start: Times, end: Times) -> float:
    sms = memory = 0.0
    for step, cost in enumerate(costs):
        for op, load in cost.loads.items():
            key = (step, op, rank)
            if key in start and end.get(key, now + 1) > now:
                sms += load.sms
                memory += load.memory * (key in end)  # the end is known once all have arrived
    return (1 - sms) * (1 - memory)


def test_placement_is_integer():
    placed: Placement = place(PLANS[0], random_costs(PLANS[0], steps=1, ranks=2, seed=0))
    assert {array.dtype for array in placed.end_ns.values()} == {np.dtype(np.int64)}
