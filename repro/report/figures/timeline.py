"""Swim lanes of one step: what every rank does, and for whom it waits, before and after balancing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from repro.errors import InputError
from repro.pipeline.ops import OP_BY_LABEL, Op
from repro.report.figures.ledger import KINDS, kind_of_collective
from repro.report.style import INK, WIDTH, styled
from repro.timeline.schema import NO_COLLECTIVE, Span, Timeline
from repro.tracking.record import RunRecord

MAX_RANKS = 8
_LANES = ("compute", "comm", "host")
_LANE_HEIGHT = 0.27


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One coloured bar: times in ms from the step's start."""

    rank: int
    lane: str
    kind: str
    start_ms: float
    duration_ms: float


def typical_step(record: RunRecord) -> int:
    """The timed step whose straggler % is the median: neither the best nor the worst of the run.

    Raises:
        InputError: the per-step rows lack it.
    """
    timed = [row for row in record.steps() if not row["warmup"]]
    if not timed or any("bubble/straggler_pct" not in row for row in timed):
        raise InputError(f"{record.folder}: no timed step with bubble/straggler_pct in its per-step rows")
    ordered = sorted(timed, key=lambda row: (row["bubble/straggler_pct"], row["step"]))
    return int(ordered[(len(ordered) - 1) // 2]["step"])


def step_segments(timeline: Timeline, step: int) -> tuple[list[Segment], float]:
    """Segments of one step and the length of its window, ms.

    The window runs from the last rank's end of the step before to the last rank's end of this one, as in the ledger.
    A collective is `straggler wait` until its last rank arrives, and bytes moving after that.

    Raises:
        InputError: the timeline has no such step.
    """
    ends = [span.start_ns + span.duration_ns for span in timeline.spans if _ends_step(span, step)]
    if not ends:
        raise InputError(f"run {timeline.run}: no step {step} in its timeline")
    before = [span.start_ns + span.duration_ns for span in timeline.spans if _ends_step(span, step - 1)]
    first, last = max(before) if before else min(span.start_ns for span in timeline.spans), max(ends)
    spans = [span for span in timeline.spans if span.start_ns < last and span.start_ns + span.duration_ns > first]
    arrived: dict[tuple[int, int], int] = {}
    for span in spans:
        key = (span.step, span.collective)
        arrived[key] = max(arrived.get(key, span.start_ns), span.start_ns)
    segments = []
    for span in spans:
        for kind, start, end in _pieces(span, arrived[(span.step, span.collective)]):
            start, end = max(start, first), min(end, last)
            if end > start:
                lane = "comm" if span.lane == "copy" else span.lane
                segments.append(
                    Segment(
                        rank=span.rank,
                        lane=lane,
                        kind=kind,
                        start_ms=(start - first) / 1e6,
                        duration_ms=(end - start) / 1e6,
                    )
                )
    return segments, (last - first) / 1e6


def _ends_step(span: Span, step: int) -> bool:
    return span.step == step and span.op == Op.OPTIMIZER_STEP.label


def _pieces(span: Span, arrived: int) -> list[tuple[str, int, int]]:
    end = span.start_ns + span.duration_ns
    if span.category == "communication":
        moving = kind_of_collective(OP_BY_LABEL[span.op])
        if span.collective == NO_COLLECTIVE:
            return [(moving, span.start_ns, end)]
        turn = min(max(arrived, span.start_ns), end)
        return [("straggler wait", span.start_ns, turn), (moving, turn, end)]
    kind = {"compute": "useful compute", "host": "host"}.get(span.category, "other idle")
    return [(kind, span.start_ns, end)]


def shown_ranks(segments: list[Segment], limit: int = MAX_RANKS) -> list[int]:
    """All ranks, or of many the quantiles by compute time, least and most loaded included."""
    busy: dict[int, float] = {}
    for segment in segments:
        busy[segment.rank] = busy.get(segment.rank, 0.0) + segment.duration_ms * (segment.kind == "useful compute")
    if len(busy) <= limit:
        return sorted(busy)
    by_load = sorted(busy, key=lambda rank: (busy[rank], rank))
    return [by_load[index] for index in np.linspace(0, len(by_load) - 1, limit).round().astype(int)]


def step_timeline(records: Sequence[RunRecord], step: int) -> Figure:
    """One panel a run, all on one time axis, so that a shorter step looks shorter.

    Raises:
        InputError: no runs, runs of several modes, or a run without that step.
    """
    if not records or len({record.config.mode for record in records}) > 1:
        raise InputError("a timeline needs runs of one mode, at least one")
    drawn = [(record, *step_segments(record.timeline(), step)) for record in records]
    ranks = [shown_ranks(segments) for _, segments, _ in drawn]
    kinds = [kind for kind in KINDS if any(segment.kind == kind for _, segments, _ in drawn for segment in segments)]
    with styled():
        height = 1.1 + sum(0.75 + 0.3 * len(shown) for shown in ranks)
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        panels = figure.subplots(
            len(drawn), 1, sharex=True, squeeze=False, height_ratios=[len(shown) + 1 for shown in ranks]
        )[:, 0]
        for axes, (record, segments, window), shown in zip(panels, drawn, ranks, strict=True):
            _draw(axes, segments, shown, window)
            config = record.config
            some = "" if len(shown) == config.gpus else f", {len(shown)} of {config.gpus} ranks by compute time"
            axes.set_title(f"{config.arm.name}: step {step} takes {window:.2f} ms ({config.mode}{some})")
            axes.set_ylabel("rank")
        panels[-1].set_xlabel(
            "time since the step began, ms   (lanes of a rank, top to bottom: compute, communication, host)"
        )
        panels[-1].set_xlim(0, 1.01 * max(window for _, _, window in drawn))
        handles = [Patch(facecolor=KINDS[kind][0], edgecolor=INK, linewidth=0.4) for kind in kinds]
        labels = [kind.removeprefix("exposed ") for kind in kinds]
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _draw(axes: Axes, segments: list[Segment], ranks: list[int], window: float) -> None:
    rows = {rank: row for row, rank in enumerate(ranks)}
    for kind, (colour, _) in KINDS.items():
        for lane_number, lane in enumerate(_LANES):
            for rank, row in rows.items():
                mine = [
                    (segment.start_ms, segment.duration_ms)
                    for segment in segments
                    if segment.rank == rank and segment.lane == lane and segment.kind == kind
                ]
                if mine:
                    top = row - 0.5 + 0.09 + lane_number * _LANE_HEIGHT
                    axes.broken_barh(mine, (top, _LANE_HEIGHT), facecolor=colour, edgecolor=INK, linewidth=0.15)
    axes.axvline(window, color=INK, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(ranks)), [str(rank) for rank in ranks])
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
