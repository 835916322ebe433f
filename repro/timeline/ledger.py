"""The bubble ledger: where each rank's time in each step went, in parts that sum to the window exactly.

Window of step t: from the end of step t-1 to the end of step t, where a step ends when the *last* rank has finished
its optimizer step. Windows are common to all ranks and tile the run.

Rule, for each instant of a rank, first match wins:
  1. compute runs                      -> useful_compute (less `contention`, where a reference duration is known)
  2. a collective moves bytes          -> exposed_<collective>   (all its ranks have arrived)
  3. a collective waits for a rank     -> straggler_wait         (somebody has not arrived yet)
  4. host work runs                    -> host_wait
  5. nothing                           -> other_idle

Spans count in whichever windows they lie, whatever step they belong to: exclusive rows of step t travel into the window
of t+1. Memory work (looking up and updating exclusive rows, beside everything else) hides nothing and is no class of
its own: where only it runs, the rank idles.

Example: two ranks, window 10 ms. Rank 0 computes 4 ms and enters an AllToAll; rank 1 computes 8 ms, enters it, and
it takes 2 ms. Rank 0: useful 4, straggler 4, exposed 2. Rank 1: useful 8, exposed 2.
Straggler % = mean(4/10, 0/10) = 20 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repro.errors import InputError, RunError
from repro.pipeline.ops import BALANCE_COLLECTIVES, EMBEDDING_COLLECTIVES, Op
from repro.timeline.schema import NO_COLLECTIVE, Metric, Timeline

BESIDE: frozenset[Op] = frozenset(
    {
        *BALANCE_COLLECTIVES,
        Op.COLLISION_MASK_ALL_TO_ALL,
        Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL,
        Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL,
    }
)
"""Collectives that run beside the step: when one that the step is blocked on is in flight, too, that one is exposed."""

COLLECTIVES: tuple[Op, ...] = tuple(
    sorted((op for op in Op if op.category == "communication"), key=lambda op: op in BESIDE)
)
"""In order of precedence when several move bytes at once."""
EXCLUSIVE = frozenset({Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL})
STRAGGLER = "straggler_wait"
PARTS: tuple[str, ...] = (
    "useful_compute",
    "contention",
    *(f"exposed_{op.label}" for op in COLLECTIVES),
    STRAGGLER,
    "host_wait",
    "other_idle",
)
"""Names of the ledger's parts. Together they are the window."""

# T steps, R ranks, P sweep classes, I elementary intervals, N spans


@dataclass(frozen=True)
class Ledger:
    """Parts of every (step, rank), integer nanoseconds."""

    steps: np.ndarray
    """Step numbers, int64 (T,)."""
    window_ns: np.ndarray
    """Length of each step's window, int64 (T,)."""
    parts_ns: dict[str, np.ndarray]
    """Part name -> int64 (T, R)."""

    def __post_init__(self) -> None:
        total = np.sum(list(self.parts_ns.values()), axis=0)
        if not np.array_equal(total, np.broadcast_to(self.window_ns[:, None], total.shape)):
            raise RunError("bubble ledger: the parts do not sum to the window")

    def part(self, name: str) -> np.ndarray:
        """One part, int64 (T, R)."""
        return self.parts_ns[name]

    def exposed_ns(self, ops: frozenset[Op] | None = None) -> np.ndarray:
        """Exposed communication of `ops` (all collectives when None), int64 (T, R)."""
        chosen = COLLECTIVES if ops is None else tuple(ops)
        exposed: np.ndarray = np.sum([self.parts_ns[f"exposed_{op.label}"] for op in chosen], axis=0)
        return exposed

    def after_warmup(self, warmup_steps: int) -> Ledger:
        """The same without its first steps."""
        return Ledger(
            steps=self.steps[warmup_steps:],
            window_ns=self.window_ns[warmup_steps:],
            parts_ns={name: part[warmup_steps:] for name, part in self.parts_ns.items()},
        )


def build_ledger(timeline: Timeline) -> Ledger:
    """Account for every nanosecond of every rank.

    Raises:
        InputError: the timeline is empty, or a step has no optimizer step.
        RunError: the parts do not sum to the window (a bug here, never a property of the run).
    """
    if not timeline.spans:
        raise InputError(f"run {timeline.run}: no spans")
    step_N, rank_N = timeline.column("step"), timeline.column("rank")
    op_N, category_N = timeline.column("op"), timeline.column("category")
    start_N = timeline.column("start_ns")
    duration_N = timeline.column("duration_ns")
    end_N = start_N + duration_N
    steps_T = np.unique(step_N)
    edges = _window_edges(timeline, steps_T, step_N, op_N, start_N, end_N)
    arrived_N = _last_arrival(step_N, timeline.column("collective"), start_N)

    reference_N = timeline.column("reference_ns")
    stretch_N = np.where(reference_N > 0, np.maximum(duration_N - reference_N, 0), 0) / np.maximum(duration_N, 1)

    ranks_R = np.unique(rank_N)
    parts = {name: np.zeros((steps_T.size, ranks_R.size), dtype=np.int64) for name in PARTS}
    for column, rank in enumerate(ranks_R):
        mine = rank_N == rank
        swept = _sweep(edges, op_N[mine], category_N[mine], start_N[mine], end_N[mine], arrived_N[mine])
        for name, part_T in swept.items():
            parts[name][:, column] = part_T
        computing = mine & (category_N == "compute") & (stretch_N > 0)
        stretched = _contention(edges, start_N[computing], end_N[computing], stretch_N[computing])
        # Kernels side by side are each stretched, but share the time they run in.
        stretched = np.minimum(stretched, parts["useful_compute"][:, column])
        parts["contention"][:, column] = stretched
        parts["useful_compute"][:, column] -= stretched
    return Ledger(steps=steps_T, window_ns=np.diff(edges), parts_ns=parts)


def _window_edges(
    timeline: Timeline,
    steps_T: np.ndarray,
    step_N: np.ndarray,
    op_N: np.ndarray,
    start_N: np.ndarray,
    end_N: np.ndarray,
) -> np.ndarray:
    """Edges of the steps' windows, int64 (T+1,)."""
    edges = [start_N[step_N == steps_T[0]].min()]
    for step in steps_T:
        ends = end_N[(step_N == step) & (op_N == Op.OPTIMIZER_STEP.label)]
        if not ends.size:
            raise InputError(
                f"run {timeline.run}, step {step}: no {Op.OPTIMIZER_STEP.label} span, so the step has no end"
            )
        edges.append(ends.max())
    return np.array(edges, dtype=np.int64)


def _last_arrival(step_N: np.ndarray, collective_N: np.ndarray, start_N: np.ndarray) -> np.ndarray:
    """For each span, when the last rank arrived at its collective; its own start outside collectives."""
    arrived_N = start_N.copy()
    inside = collective_N != NO_COLLECTIVE
    keys = np.stack([step_N[inside], collective_N[inside]])
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    if group.size:
        latest = np.full(group.max() + 1, np.iinfo(np.int64).min)
        np.maximum.at(latest, group, start_N[inside])
        arrived_N[inside] = latest[group]
    return arrived_N


def _sweep(
    edges: np.ndarray, op: np.ndarray, category: np.ndarray, start: np.ndarray, end: np.ndarray, arrived: np.ndarray
) -> dict[str, np.ndarray]:
    """Attribute every elementary interval of one rank to one class; classes are in order of precedence."""
    communicating = category == "communication"
    classes: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("useful_compute", start[category == "compute"], end[category == "compute"])
    ]
    for collective in COLLECTIVES:
        mine = communicating & (op == collective.label)
        moving_from = np.minimum(np.maximum(start[mine], arrived[mine]), end[mine])
        classes.append((f"exposed_{collective.label}", moving_from, end[mine]))
    waiting_until = np.minimum(arrived[communicating], end[communicating])
    classes.append((STRAGGLER, start[communicating], np.maximum(waiting_until, start[communicating])))
    hosting = category == "host"
    classes.append(("host_wait", start[hosting], end[hosting]))

    cuts = np.unique(np.concatenate([edges, *(times for _, s, e in classes for times in (s, e))]))
    cuts = cuts[(cuts >= edges[0]) & (cuts <= edges[-1])]
    length_I = np.diff(cuts)
    window_I = np.searchsorted(edges, cuts[:-1], side="right") - 1
    windows = edges.size - 1

    free_I = np.ones(length_I.size, dtype=bool)
    parts = {}
    for name, starts, ends in classes:
        delta = np.zeros(cuts.size, dtype=np.int64)
        np.add.at(delta, np.searchsorted(cuts, np.clip(starts, cuts[0], cuts[-1])), 1)
        np.add.at(delta, np.searchsorted(cuts, np.clip(ends, cuts[0], cuts[-1])), -1)
        taken_I = free_I & (np.cumsum(delta)[:-1] > 0)
        free_I &= ~taken_I
        parts[name] = _sum_by_window(window_I[taken_I], length_I[taken_I], windows)
    parts["other_idle"] = _sum_by_window(window_I[free_I], length_I[free_I], windows)
    return parts


def _sum_by_window(window: np.ndarray, length: np.ndarray, windows: int) -> np.ndarray:
    total = np.zeros(windows, dtype=np.int64)
    np.add.at(total, window, length)
    return total


def _contention(edges: np.ndarray, start: np.ndarray, end: np.ndarray, stretch: np.ndarray) -> np.ndarray:
    """Nanoseconds of compute stretched by co-running communication in each window, int64 (T,)."""
    inside = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(start[:, None], edges[None, :-1])
    stretched: np.ndarray = (np.maximum(inside, 0) * stretch[:, None]).sum(axis=0).astype(np.int64)
    return stretched


def bubble_metrics(ledger: Ledger, *, requests_per_step: float) -> dict[str, Metric]:
    """Metrics of a ledger: by name.

    - straggler_pct: mean over ranks and steps of straggler wait / window (the paper's definition)
    - exposed_comm_ms, exposed_embedding_ms: exposed communication a step, mean over ranks
    - exposed_exclusive_ms: of the latter, exclusive rows of prioritized updates: in flight while nothing computed,
      which costs time only if somebody waited for them (beside host work nobody does)
    - exposed_balance_pct: exposed communication of the balancing exchange, share of the window
    - bubble_pct: share of the window in which no compute runs; contention_pct: share lost to stretched compute
    - imbalance: max over ranks / mean over ranks of compute time, mean over steps
    - step_ms, qps (requests a second over all ranks)
    """
    window_T = ledger.window_ns.astype(float)
    computing = (ledger.part("useful_compute") + ledger.part("contention")).astype(float)
    total_ns = window_T.sum() * computing.shape[1]
    step_ns = window_T.mean()
    return {
        "straggler_pct": Metric(value=float(100 * ledger.part(STRAGGLER).sum() / total_ns), unit="%"),
        "exposed_comm_ms": Metric(value=float(ledger.exposed_ns().mean() / 1e6), unit="ms"),
        "exposed_embedding_ms": Metric(value=float(ledger.exposed_ns(EMBEDDING_COLLECTIVES).mean() / 1e6), unit="ms"),
        "exposed_exclusive_ms": Metric(value=float(ledger.exposed_ns(EXCLUSIVE).mean() / 1e6), unit="ms"),
        "exposed_balance_pct": Metric(
            value=float(100 * ledger.exposed_ns(BALANCE_COLLECTIVES).sum() / total_ns), unit="%"
        ),
        "bubble_pct": Metric(value=float(100 * (1 - computing.sum() / total_ns)), unit="%"),
        "contention_pct": Metric(value=float(100 * ledger.part("contention").sum() / total_ns), unit="%"),
        "imbalance": Metric(value=float(np.mean(computing.max(axis=1) / computing.mean(axis=1))), unit="max/mean"),
        "step_ms": Metric(value=float(step_ns / 1e6), unit="ms"),
        "qps": Metric(value=float(requests_per_step / (step_ns / 1e9)), unit="requests/s"),
    }
