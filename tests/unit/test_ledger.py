"""Without this a nanosecond could be booked to the wrong cause of bubbles, or to two, or to none. Not covered: whether
executors emit the right spans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.errors import InputError, RunError
from repro.pipeline.ops import OP_BY_LABEL, Op
from repro.timeline.ledger import PARTS, Ledger, bubble_metrics, build_ledger
from repro.timeline.schema import Span, Timeline


def span(rank: int, op: Op, start: int, end: int, *, step: int = 0, collective: int = -1, reference: int = 0) -> Span:
    return Span(
        step=step, rank=rank, lane=op.lane, op=op.label, category=op.category, start_ns=start,
        duration_ns=end - start, collective=collective, reference_ns=reference,
    )  # fmt: skip


def step_ends(end: int, ranks: int = 1, step: int = 0) -> list[Span]:
    """An optimizer step of no duration on every rank: it closes the window and takes no time."""
    return [span(rank, Op.OPTIMIZER_STEP, end, end, step=step) for rank in range(ranks)]


def ledger_of(*spans: Span) -> Ledger:
    return build_ledger(Timeline(list(spans), run="r", mode="measured"))


def parts_of(ledger: Ledger, step: int, rank: int) -> dict[str, int]:
    """Parts that are not zero."""
    return {name: int(part[step, rank]) for name, part in ledger.parts_ns.items() if part[step, rank]}


def test_straggler_as_in_the_docstring():
    ledger = ledger_of(
        span(0, Op.DENSE_FORWARD, 0, 4),
        span(1, Op.DENSE_FORWARD, 0, 8),
        span(0, Op.GRADIENT_ALL_TO_ALL, 4, 10, collective=0),
        span(1, Op.GRADIENT_ALL_TO_ALL, 8, 10, collective=0),
        *step_ends(10, ranks=2),
    )
    assert parts_of(ledger, 0, 0) == {"useful_compute": 4, "straggler_wait": 4, "exposed_gradient_all_to_all": 2}
    assert parts_of(ledger, 0, 1) == {"useful_compute": 8, "exposed_gradient_all_to_all": 2}
    metrics = bubble_metrics(ledger, requests_per_step=5)
    assert metrics["straggler_pct"].value == pytest.approx(20)
    assert metrics["bubble_pct"].value == pytest.approx(40)
    assert metrics["exposed_embedding_ms"].value == pytest.approx(2e-6)
    assert metrics["imbalance"].value == pytest.approx(8 / 6)
    assert metrics["step_ms"].value == pytest.approx(1e-5)
    assert metrics["qps"].value == pytest.approx(5e8)


def test_overlapped_communication_is_not_exposed():
    ledger = ledger_of(
        span(0, Op.DENSE_BACKWARD, 0, 6), span(0, Op.DENSE_ALL_REDUCE, 2, 9, collective=0), *step_ends(10)
    )
    assert parts_of(ledger, 0, 0) == {"useful_compute": 6, "exposed_dense_all_reduce": 3, "other_idle": 1}


def test_only_what_of_the_balancing_exchange_shows_counts_against_it():
    """Of samples that travel from 2 to 7, dense work hides 4; gradients are none of balancing's."""
    ledger = ledger_of(
        span(0, Op.DENSE_FORWARD, 0, 6),
        span(0, Op.SAMPLES_ALL_TO_ALL, 2, 7, collective=0),
        span(0, Op.GRADIENT_ALL_TO_ALL, 7, 10, collective=1),
        *step_ends(10),
    )
    assert bubble_metrics(ledger, requests_per_step=1)["exposed_balance_pct"].value == pytest.approx(10)


def test_waiting_beside_compute_is_not_straggling():
    """Rank 0 computes until 6 while its collective waits for rank 1, which arrives at 7."""
    ledger = ledger_of(
        span(0, Op.DENSE_BACKWARD, 0, 6),
        span(0, Op.DENSE_ALL_REDUCE, 2, 9, collective=0),
        span(1, Op.DENSE_BACKWARD, 0, 7),
        span(1, Op.DENSE_ALL_REDUCE, 7, 9, collective=0),
        *step_ends(9, ranks=2),
    )
    assert parts_of(ledger, 0, 0) == {"useful_compute": 6, "straggler_wait": 1, "exposed_dense_all_reduce": 2}


def test_contention_is_the_stretch_of_compute():
    ledger = ledger_of(span(0, Op.DENSE_FORWARD, 0, 100, reference=80), *step_ends(100))
    assert parts_of(ledger, 0, 0) == {"useful_compute": 80, "contention": 20}
    assert bubble_metrics(ledger, requests_per_step=1)["bubble_pct"].value == pytest.approx(0)


def test_contention_across_a_window_edge_is_shared_by_time():
    ledger = ledger_of(span(0, Op.DENSE_FORWARD, 0, 100, reference=80), *step_ends(50), *step_ends(100, step=1))
    assert ledger.part("contention").tolist() == [[10], [10]]
    assert ledger.part("useful_compute").tolist() == [[40], [40]]


def test_a_reference_longer_than_the_span_is_no_negative_contention():
    ledger = ledger_of(span(0, Op.DENSE_FORWARD, 0, 10, reference=15), *step_ends(10))
    assert parts_of(ledger, 0, 0) == {"useful_compute": 10}


def test_contention_of_kernels_side_by_side_is_no_more_than_the_time_they_share():
    """Two kernels run together for 10 ns, each 9 ns longer than alone."""
    ledger = ledger_of(
        span(0, Op.DENSE_FORWARD, 0, 10, reference=1), span(0, Op.LOOKUP, 0, 10, reference=1), *step_ends(10)
    )
    assert parts_of(ledger, 0, 0) == {"contention": 10}


def test_host_work_counts_only_where_nothing_else_happens():
    ledger = ledger_of(
        span(0, Op.DATA_LOAD, 0, 10),
        span(0, Op.DENSE_FORWARD, 2, 4),
        span(0, Op.ID_ALL_TO_ALL, 4, 7, collective=0),
        *step_ends(12),
    )
    assert parts_of(ledger, 0, 0) == {
        "useful_compute": 2, "exposed_id_all_to_all": 3, "host_wait": 5, "other_idle": 2,
    }  # fmt: skip


def test_a_moving_collective_takes_precedence_over_a_waiting_one():
    """From 0 rank 0 sits in two collectives: the first waits for rank 1 until 6, the second moves from 2 to 4."""
    ledger = ledger_of(
        span(0, Op.GRADIENT_ALL_TO_ALL, 0, 8, collective=0),
        span(0, Op.DENSE_ALL_REDUCE, 0, 4, collective=1),
        span(1, Op.DENSE_ALL_REDUCE, 2, 4, collective=1),
        span(1, Op.GRADIENT_ALL_TO_ALL, 6, 8, collective=0),
        *step_ends(8, ranks=2),
    )
    assert parts_of(ledger, 0, 0) == {
        "straggler_wait": 4, "exposed_dense_all_reduce": 2, "exposed_gradient_all_to_all": 2,
    }  # fmt: skip
    assert parts_of(ledger, 0, 1) == {
        "other_idle": 4, "exposed_dense_all_reduce": 2, "exposed_gradient_all_to_all": 2,
    }  # fmt: skip


def test_two_moving_collectives_are_booked_once_to_the_earlier_op_of_the_list():
    ledger = ledger_of(
        span(0, Op.DENSE_ALL_REDUCE, 0, 6, collective=1),
        span(0, Op.GRADIENT_ALL_TO_ALL, 2, 8, collective=0),
        *step_ends(8),
    )
    assert parts_of(ledger, 0, 0) == {"exposed_dense_all_reduce": 2, "exposed_gradient_all_to_all": 6}


def test_equal_collective_numbers_of_different_steps_are_different_collectives():
    ledger = ledger_of(
        span(0, Op.ID_ALL_TO_ALL, 0, 4, collective=0),
        span(1, Op.ID_ALL_TO_ALL, 1, 4, collective=0),
        *step_ends(4, ranks=2),
        span(0, Op.ID_ALL_TO_ALL, 4, 9, collective=0, step=1),
        span(1, Op.ID_ALL_TO_ALL, 7, 9, collective=0, step=1),
        *step_ends(9, ranks=2, step=1),
    )
    assert ledger.part("straggler_wait").tolist() == [[1, 0], [3, 0]]
    assert ledger.part("exposed_id_all_to_all").tolist() == [[3, 3], [2, 2]]


def test_windows_tile_the_run_and_end_with_the_last_rank():
    ledger = ledger_of(
        span(0, Op.DENSE_FORWARD, 5, 10),
        span(0, Op.OPTIMIZER_STEP, 10, 12),
        span(1, Op.DENSE_FORWARD, 7, 20),
        span(1, Op.OPTIMIZER_STEP, 20, 21),
        span(0, Op.DENSE_FORWARD, 12, 25, step=1),
        span(1, Op.DENSE_FORWARD, 21, 28, step=1),
        *step_ends(30, ranks=2, step=1),
    )
    assert ledger.window_ns.tolist() == [16, 9]
    assert ledger.part("useful_compute").tolist() == [[7 + 9, 14], [4, 7]]
    assert parts_of(ledger, 0, 1) == {"useful_compute": 14, "other_idle": 2}


def test_a_prefetch_of_the_next_step_is_booked_where_it_runs():
    """The next step's exchange starts in this window and ends in the next one."""
    ledger = ledger_of(
        span(0, Op.DENSE_FORWARD, 0, 6),
        span(0, Op.ID_ALL_TO_ALL, 4, 15, collective=0, step=1),
        *step_ends(10),
        span(0, Op.DENSE_FORWARD, 15, 20, step=1),
        *step_ends(20, step=1),
    )
    assert parts_of(ledger, 0, 0) == {"useful_compute": 6, "exposed_id_all_to_all": 4}
    assert parts_of(ledger, 1, 0) == {"useful_compute": 5, "exposed_id_all_to_all": 5}


def test_after_warmup_drops_the_first_steps():
    spans = [s for step in range(3) for s in step_ends(10 * (step + 1), step=step)]
    ledger = ledger_of(span(0, Op.DATA_LOAD, 0, 1), *spans).after_warmup(2)
    assert ledger.steps.tolist() == [2]
    assert ledger.window_ns.tolist() == [10]


def test_errors():
    with pytest.raises(InputError, match="no spans"):
        build_ledger(Timeline([], run="r", mode="measured"))
    with pytest.raises(InputError, match="step 0: no optimizer_step"):
        ledger_of(span(0, Op.LOOKUP, 0, 1))
    with pytest.raises(RunError, match="sum"):
        Ledger(steps=np.array([0]), window_ns=np.array([3]), parts_ns={"useful_compute": np.array([[2]])})


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Random spans on a small integer grid: 1 to 3 ranks, 1 to 3 steps, anything overlapping anything."""
    ranks, steps = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    times = st.integers(0, 24)
    spans = []
    for _ in range(draw(st.integers(0, 12))):
        begin, length = draw(times), draw(st.integers(0, 10))
        op = draw(st.sampled_from(list(Op)))
        collective = draw(st.integers(0, 2)) if op.category == "communication" else -1
        spans.append(
            span(
                draw(st.integers(0, ranks - 1)),
                op,
                begin,
                begin + length,
                step=draw(st.integers(0, steps - 1)),
                collective=collective,
                reference=draw(st.integers(0, 10)) if op.category == "compute" else 0,
            )
        )
    cuts = sorted(draw(st.lists(st.integers(0, 30), min_size=steps, max_size=steps)))
    for step, cut in enumerate(cuts):
        spans += step_ends(cut, ranks=ranks, step=step)
    return Timeline(spans, run="r", mode="measured")


def has_ordered_windows(timeline: Timeline) -> bool:
    """Steps end one after another, none before the run starts."""
    starts = [s.start_ns for s in timeline.spans if s.step == min(s.step for s in timeline.spans)]
    edges = [min(starts), *window_ends(timeline)]
    return edges == sorted(edges)


def window_ends(timeline: Timeline) -> list[int]:
    steps = sorted({s.step for s in timeline.spans})
    return [
        max(s.start_ns + s.duration_ns for s in timeline.spans if s.op == "optimizer_step" and s.step == step)
        for step in steps
    ]


@settings(max_examples=300, deadline=None)
@given(timelines().filter(has_ordered_windows))
def test_the_sweep_equals_a_ledger_read_off_instant_by_instant(timeline):
    ledger = build_ledger(timeline)
    total = sum(ledger.parts_ns[name] for name in PARTS)
    np.testing.assert_array_equal(total, np.broadcast_to(ledger.window_ns[:, None], total.shape))
    assert all((ledger.part(name) >= 0).all() for name in PARTS)
    found = {**ledger.parts_ns, "computing": ledger.part("useful_compute") + ledger.part("contention")}
    for name, expected in brute_force(timeline).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


def brute_force(timeline: Timeline) -> dict[str, np.ndarray]:
    """Ask of every nanosecond of every rank what happened in it, first rule first."""
    spans = timeline.spans
    ranks = sorted({s.rank for s in spans})
    arrival: dict[tuple[int, int], int] = {}
    for s in spans:
        if s.category == "communication":
            key = (s.step, s.collective)
            arrival[key] = max(arrival.get(key, s.start_ns), s.start_ns)
    first = min(s.step for s in spans)
    begin = min(s.start_ns for s in spans if s.step == first)
    names = ["computing", *(name for name in PARTS if name not in ("useful_compute", "contention"))]
    parts = {name: np.zeros((len(window_ends(timeline)), len(ranks)), dtype=np.int64) for name in names}
    for window, end in enumerate(window_ends(timeline)):
        for now in range(begin, end):
            for column, rank in enumerate(ranks):
                running = [s for s in spans if s.rank == rank and s.start_ns <= now < s.start_ns + s.duration_ns]
                parts[cause(running, arrival, now)][window, column] += 1
        begin = max(begin, end)
    return parts


def cause(running: list[Span], arrival: dict[tuple[int, int], int], now: int) -> str:
    if any(s.category == "compute" for s in running):
        return "computing"
    inside = [s for s in running if s.category == "communication"]
    moving = [s for s in inside if arrival[s.step, s.collective] <= now]
    if moving:
        order = list(Op)
        beside = (
            "lengths_",
            "candidates_",
            "samples_",
            "collision_mask_",
            "exclusive_",
        )  # the step is not blocked on them
        return "exposed_" + min(moving, key=lambda s: (s.op.startswith(beside), order.index(OP_BY_LABEL[s.op]))).op
    if inside:
        return "straggler_wait"
    return "host_wait" if any(s.category == "host" for s in running) else "other_idle"
