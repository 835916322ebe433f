"""Curves of a metric along one knob of a sweep: world size, batch or cap (paper, Fig. 8, 9 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import Setting, Spread, arm_key, by_setting, events, spread
from repro.report.published import PaperValue
from repro.report.style import ARM_LINE, ARM_MARKER, WIDTH, arm_colour, paper_style, styled
from repro.tracking.record import RunRecord

Knob = Literal["gpus", "batch", "max_uih"]
KNOB_LABEL: dict[Knob, str] = {
    "gpus": "GPUs (log scale)",
    "batch": "batch, requests a GPU (log scale)",
    "max_uih": "max UIH, events (log scale)",
}
KNOB_NAME: dict[Knob, str] = {"gpus": "GPUs", "batch": "batch", "max_uih": "max UIH"}
Curve = dict[int, Spread]
"""Value of the knob -> the metric over the seeds."""
Panel = tuple[str, dict[str, Curve]]
"""What all its runs share, in words; arm -> curve."""


def sweep_panels(records: Sequence[RunRecord], knob: Knob, metric: str) -> list[Panel]:
    """Curves by what the runs share apart from `knob` and the arm.

    Raises:
        InputError: no runs, or a run without the metric.
    """
    if not records:
        raise InputError(f"a figure along {knob} needs at least one run")
    panels: dict[Setting, dict[str, Curve]] = {}
    for setting, group in by_setting(records).items():
        panel = panels.setdefault(_without(setting, knob), {})
        for arm, runs in group.items():
            panel.setdefault(arm, {})[getattr(setting, knob)] = spread(runs, metric)
    return [
        (_shared(shared, knob), {arm: panel[arm] for arm in sorted(panel, key=arm_key)})
        for shared, panel in panels.items()
    ]


def _without(setting: Setting, knob: Knob) -> Setting:
    match knob:
        case "gpus":
            return replace(setting, gpus=0)
        case "batch":
            return replace(setting, batch=0)
        case "max_uih":
            return replace(setting, max_uih=0)


def _shared(setting: Setting, knob: Knob) -> str:
    parts = [
        setting.mode,
        "" if knob == "gpus" else setting.world,
        setting.dataset,
        "" if knob == "max_uih" else f"UIH {events(setting.max_uih)}",
        "" if knob == "batch" else f"batch {setting.batch}",
    ]
    return ", ".join(part for part in parts if part)


def along(records: Sequence[RunRecord], knob: Knob, metric: str, label: str) -> Figure:
    """One panel for all that the runs share; colour and marker say which arm.

    Raises:
        InputError: no runs, or a run without the metric.
    """
    panels = sweep_panels(records, knob, metric)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (shared, panel) in zip(row, panels, strict=True):
            draw_curves(axes, panel, knob)
            axes.set_title(shared)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,.10g}")
        row[0].set_ylabel(label)
        legend_above(figure, row[0], columns=len(panels[0][1]) if len(panels[0][1]) < 5 else 3)
    return figure


def draw_curves(axes: Axes, panel: dict[str, Curve], knob: Knob) -> None:
    """Every arm's curve, over a log axis of `knob`."""
    for arm, curve in panel.items():
        x = sorted(curve)
        axes.plot(
            x,
            [curve[at].mean for at in x],
            linestyle=ARM_LINE.get(arm, "-"),
            marker=ARM_MARKER.get(arm, "o"),
            color=arm_colour(arm),
            label=arm,
        )
        low, high = ([getattr(curve[at], end) for at in x] for end in ("low", "high"))
        axes.fill_between(x, low, high, color=arm_colour(arm), alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({at for curve in panel.values() for at in curve})
    axes.set_xticks(ticks, [events(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(KNOB_LABEL[knob])
    axes.margins(x=0.08)


def draw_paper_points(axes: Axes, values: Sequence[PaperValue], knob: Knob) -> None:
    """The paper's own values, hollow stars in the colour of their arm."""
    for value in values:
        at = getattr(value, knob)
        if at is not None:
            axes.plot(at, value.value, **paper_style(value))


def legend_above(figure: Figure, *panels: Axes, columns: int = 3) -> None:
    """One legend of all that the panels show, each entry once."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns)
