"""Sparsity and straggler % of the baseline against the cap on UIH (paper, Fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.errors import InputError
from repro.report.comparison import BASELINE, events, setting_of, spread
from repro.report.published import PaperValue
from repro.report.style import INK, MODE_MARKER, WIDTH, arm_colour, styled
from repro.tracking.record import RunRecord

METRICS = ("sparsity_pct", "straggler_pct")
_TITLES = {"sparsity_pct": "Padding to the longest history", "straggler_pct": "Waiting for slower ranks"}
_LABELS = {"sparsity_pct": "sparsity, % of padded batch", "straggler_pct": "straggler wait, % of step"}
_LINES = ("-", "--", ":", "-.")

Size = tuple[str, int, int]
"""Data set, GPUs, batch."""


def workload_curves(records: Sequence[RunRecord], metric: str) -> dict[Size, dict[int, float]]:
    """Size -> max UIH -> mean over seeds, in percent; of the baseline's runs.

    Raises:
        InputError: a run lacks the metric.
    """
    runs: dict[Size, dict[int, list[RunRecord]]] = {}
    for record in records:
        if record.config.arm.name == BASELINE:
            at = setting_of(record)
            runs.setdefault((at.dataset, at.gpus, at.batch), {}).setdefault(at.max_uih, []).append(record)
    return {
        size: {cap: spread(group, metric).mean for cap, group in sorted(caps.items())} for size, caps in runs.items()
    }


def workload_against_uih(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """Two panels, one line a size; the paper's points are stars, its bounds triangles, joined to nothing.

    Raises:
        InputError: no runs of the baseline, or of several modes.
    """
    modes = {record.config.mode for record in records}
    if len(modes) != 1 or not workload_curves(records, METRICS[0]):
        raise InputError("the workload figure needs baseline runs of one mode")
    (mode,) = modes
    with styled():
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, metric in zip(panels, METRICS, strict=True):
            _draw(axes, workload_curves(records, metric), mode)
            axes.set_title(f"{_TITLES[metric]} ({mode})")
            axes.set_ylabel(_LABELS[metric])
            for value in published:
                if value.metric == metric and value.arm == BASELINE and value.max_uih is not None:
                    _draw_published(axes, value)
            axes.set_ylim(0, 102 if metric == METRICS[0] else None)
        handles = {
            label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=3)
    return figure


def _draw(axes: Axes, curves: dict[Size, dict[int, float]], mode: str) -> None:
    for (dataset, gpus, batch), line in zip(curves, _LINES * len(curves), strict=False):
        curve = curves[dataset, gpus, batch]
        axes.plot(
            list(curve),
            list(curve.values()),
            color=arm_colour(BASELINE),
            linestyle=line,
            marker=MODE_MARKER[mode],
            markersize=4,
            markeredgecolor=INK,
            label=f"{dataset}, {gpus} GPUs x {batch}",
        )
    caps = sorted({cap for curve in curves.values() for cap in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(caps, [events(cap) for cap in caps])
    axes.minorticks_off()
    axes.set_xlabel("max UIH, events (log scale)")


def _draw_published(axes: Axes, value: PaperValue) -> None:
    marker = {">": "^", "<": "v"}.get(value.relation, MODE_MARKER["paper"])
    label = f"paper {value.figure} ({value.confidence}): {value.text()}"
    axes.add_line(
        Line2D(
            [value.max_uih or 0],
            [value.value],
            linestyle="none",
            marker=marker,
            markersize=9 if value.is_bound else 14,
            markerfacecolor="none",
            markeredgecolor=INK,
            markeredgewidth=1.6,
            label=label,
        )
    )
