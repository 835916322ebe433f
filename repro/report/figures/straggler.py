"""Straggler % against the cap on UIH (paper, Fig. 2 and 8a)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import Spread, arm_key, by_setting, events, spread
from repro.report.published import PaperValue
from repro.report.style import ARM_LINE, MODE_MARKER, WIDTH, arm_colour, paper_style, styled
from repro.tracking.record import RunRecord

METRIC = "straggler_pct"
Curve = dict[int, Spread]
"""Max UIH -> straggler % over the seeds."""


def straggler_curves(records: Sequence[RunRecord]) -> dict[tuple[str, str, int], dict[str, Curve]]:
    """(mode, data set, world size) -> arm -> curve."""
    curves: dict[tuple[str, str, int], dict[str, Curve]] = {}
    for setting, group in by_setting(records).items():
        panel = curves.setdefault((setting.mode, setting.dataset, setting.gpus), {})
        for arm, runs in group.items():
            curve = panel.setdefault(arm, {})
            if setting.max_uih in curve:
                raise InputError(f"several runs of {arm} at max UIH {setting.max_uih}: they differ in batch or model")
            curve[setting.max_uih] = spread(runs, METRIC)
    return curves


def straggler_against_uih(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """One panel a (mode, data set, world size); the paper's points are stars, its bounds arrows, and no line joins
    them to anything.

    Raises:
        InputError: no runs, or a run without a straggler %.
    """
    if not records:
        raise InputError("the straggler figure needs runs at several max UIH")
    curves = straggler_curves(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
        for axes, ((mode, dataset, gpus), panel) in zip(panels, curves.items(), strict=True):
            for arm in sorted(panel, key=arm_key):
                _draw_curve(axes, arm, mode, panel[arm])
            for value in published:
                if value.metric == METRIC and value.max_uih is not None and value.gpus in (None, gpus):
                    _draw_published(axes, value)
            axes.set_xscale("log", base=2)
            ticks = sorted({uih for curve in panel.values() for uih in curve})
            axes.set_xticks(ticks, [events(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set_xlabel("max UIH, events (log scale)")
            axes.set_title(f"{mode}, {gpus} GPUs, {dataset}")
            axes.set_ylim(bottom=0)
            axes.margins(x=0.08)
        panels[0].set_ylabel("straggler wait, % of step")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure


def _draw_curve(axes: Axes, arm: str, mode: str, curve: Curve) -> None:
    x = sorted(curve)
    axes.plot(
        x,
        [curve[uih].mean for uih in x],
        linestyle=ARM_LINE.get(arm, "-"),
        marker=MODE_MARKER[mode],
        color=arm_colour(arm),
        label=f"{arm}, {mode}",
    )
    axes.fill_between(
        x, [curve[uih].low for uih in x], [curve[uih].high for uih in x], color=arm_colour(arm), alpha=0.2, linewidth=0
    )


def _draw_published(axes: Axes, value: PaperValue) -> None:
    assert value.max_uih is not None
    style = paper_style(value)
    if value.is_bound:
        style |= {"marker": {">": "^", "<": "v"}[value.relation], "markersize": 9}
    axes.plot(value.max_uih, value.value, **style)
