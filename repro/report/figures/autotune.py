"""Straggler wait step by step, while AutoTune learns how fast each rank is."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import by_setting
from repro.report.style import ARM_LINE, ARM_MARKER, WIDTH, arm_colour, styled
from repro.tracking.record import RunRecord

KEY = "bubble/straggler_pct"


def autotune_figure(records: Sequence[RunRecord]) -> Figure:
    """A curve an arm, one panel a setting.

    Raises:
        InputError: no runs.
    """
    if not records:
        raise InputError("the curves of AutoTune need at least one run")
    groups = by_setting(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
        panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
        for axes, (setting, group) in zip(panels, groups.items(), strict=True):
            for arm, runs in group.items():
                rows = runs[0].steps()
                axes.plot(
                    [row["step"] for row in rows],
                    [row[KEY] for row in rows],
                    color=arm_colour(arm),
                    linestyle=ARM_LINE.get(arm, "-"),
                    marker=ARM_MARKER.get(arm, "o"),
                    markersize=3,
                    label=arm,
                )
            axes.set_title(setting.text())
            axes.set_xlabel("step")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("straggler wait, % of step")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure
