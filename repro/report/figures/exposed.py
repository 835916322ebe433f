"""Exposed embedding communication (paper, Fig. 9), against the cap on UIH and against the collision rate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import BASELINE, by_setting, events
from repro.report.figures.sweep import draw_curves, draw_paper_points, legend_above, sweep_panels
from repro.report.published import PaperValue
from repro.report.style import ARM_LINE, INK, MODE_MARKER, WIDTH, arm_colour, styled
from repro.tracking.record import RunRecord

METRIC = "exposed_embedding_ms"
EXCLUSIVE = "exposed_exclusive_ms"
PRIORITY = "balance+priority"
UNSPLIT = "balance"
"""The arm that differs from `PRIORITY` in its exchange only."""
SYNCHRONOUS = 100
"""Per cent: all rows collide."""
CAP = 8_000
"""Where the paper gives values."""

_AT = re.compile(rf"{METRIC}_at_(\d+)pct")


def at_shares(record: RunRecord, metric: str = METRIC) -> dict[int, float]:
    """Overridden collision share, per cent -> the metric, ascending; empty for runs that hold none."""
    shares = sorted(int(found[1]) for found in map(_AT.fullmatch, record.metrics) if found)
    return {share: record.metric(f"{metric}_at_{share}pct") for share in shares}


def low_shares(record: RunRecord, metric: str = METRIC) -> dict[int, float]:
    """`at_shares` without the synchronous end."""
    return {share: value for share, value in at_shares(record, metric).items() if share < SYNCHRONOUS}


def line_fit(points: Mapping[int, float] | Mapping[float, float]) -> tuple[float, float, float]:
    """(value at 0 %, slope a per cent, R^2) of the least-squares line."""
    x, y = np.array(list(points)), np.array(list(points.values()))
    slope, start = np.polyfit(x, y, 1)
    total = ((y - y.mean()) ** 2).sum()
    left = ((y - (start + slope * x)) ** 2).sum()
    return float(start), float(slope), float(1 - left / total) if total else 1.0


def swept_run(records: Sequence[RunRecord]) -> tuple[RunRecord, dict[str, RunRecord]] | None:
    """The prioritized run at the cap nearest to the paper's that holds other shares, and all arms of its setting."""
    found = [
        (abs(np.log2(setting.max_uih / CAP)), group)
        for setting, group in by_setting(records).items()
        if PRIORITY in group and at_shares(group[PRIORITY][0])
    ]
    if not found:
        return None
    group = min(found, key=lambda item: item[0])[1]
    return group[PRIORITY][0], {arm: runs[0] for arm, runs in group.items()}


def exposed_figure(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """Left: against the cap, at the data set's own collision rate. Right: against the rate, overridden, at one cap.

    Raises:
        InputError: no runs, several data sets or world sizes, or a run without the metric.
    """
    panels = sweep_panels(records, "max_uih", METRIC)
    if len(panels) > 1:
        raise InputError(f"the figure of exposed embedding communication needs one setting, got {len(panels)}")
    shared, panel = panels[0]
    values = [value for value in published if value.metric == METRIC]
    with styled():
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        draw_curves(left, panel, "max_uih")
        draw_paper_points(left, values, "max_uih")
        left.set_yscale("log")
        left.set_ylabel("exposed embedding exchange, ms (log scale)")
        left.set_title(shared)
        swept = swept_run(records)
        if swept is None:
            right.set_axis_off()
            right.text(0.5, 0.5, "no run holds other collision rates", ha="center", style="italic")
        else:
            _draw_shares(right, *swept)
        legend_above(figure, left, right, columns=2)
    return figure


def _draw_shares(axes: Axes, run: RunRecord, arms: dict[str, RunRecord]) -> None:
    points, colour = low_shares(run), arm_colour(PRIORITY)
    hidden = low_shares(run, EXCLUSIVE)
    marker = MODE_MARKER[run.config.mode]
    axes.plot(
        list(points),
        list(points.values()),
        linestyle="none",
        marker=marker,
        color=colour,
        label=f"{PRIORITY}, rate overridden",
    )
    axes.plot(
        list(points),
        [points[share] - hidden[share] for share in points],
        linestyle="none",
        marker=marker,
        markerfacecolor="none",
        color=colour,
        label="of it, without exclusive rows",
    )
    start, slope, _ = line_fit(points)
    ends = np.array([0, max(points)])
    axes.plot(ends, start + slope * ends, linestyle=ARM_LINE[PRIORITY], color=colour)
    for arm in (BASELINE, "sdd", UNSPLIT):
        if arm in arms:
            axes.axhline(arms[arm].metric(METRIC), linestyle=ARM_LINE[arm], color=arm_colour(arm))
    axes.axhline(
        at_shares(run)[SYNCHRONOUS], linestyle=(0, (1, 2)), color=INK, label="same rows, synchronous (100 % collide)"
    )
    axes.set_xlim(0, max(points) * 1.05)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("exposed embedding exchange, ms")
    axes.set_xlabel("rows that collide, % of those exchanged (overridden)")
    axes.set_title(f"{run.config.mode}, max UIH {events(run.config.max_uih)}")
