"""NE against steps (paper, Fig. 11 bottom): the arms' curves must coincide, so their difference has its own panel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import BASELINE, Setting, by_setting
from repro.report.style import ARM_LINE, WIDTH, arm_colour, styled
from repro.tracking.record import RunRecord

KEY = "quality/ne"


def ne_rows(record: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    """Steps and progressive NE of a run.

    Raises:
        InputError: the run trained nothing, so it has no NE.
    """
    rows = record.steps()
    if any(KEY not in row for row in rows):
        raise InputError(f"{record.folder}: no {KEY} in its per-step rows")
    return np.array([row["step"] for row in rows]), np.array([row[KEY] for row in rows])


def ne_differences(records: Sequence[RunRecord]) -> dict[tuple[Setting, str], float]:
    """(setting, arm) -> largest absolute NE difference to the baseline over all steps and common seeds."""
    largest = {}
    for setting, group in by_setting(records).items():
        baseline = {run.config.seed: ne_rows(run)[1] for run in group.get(BASELINE, [])}
        for arm, runs in group.items():
            gaps = [
                float(np.abs(ne_rows(run)[1] - baseline[run.config.seed]).max())
                for run in runs
                if arm != BASELINE and run.config.seed in baseline
            ]
            if gaps:
                largest[(setting, arm)] = max(gaps)
    return largest


def ne_curves(records: Sequence[RunRecord]) -> Figure:
    """NE of each arm against steps, one column a setting; below, each arm's difference to the baseline.

    Raises:
        InputError: no runs, or a run without NE.
    """
    if not records:
        raise InputError("NE curves need measured runs")
    groups = by_setting(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        grid = figure.subplots(2, len(groups), sharex="col", squeeze=False, height_ratios=(2, 1))
        for column, (setting, group) in enumerate(groups.items()):
            upper, lower = grid[0][column], grid[1][column]
            baseline = {run.config.seed: ne_rows(run)[1] for run in group.get(BASELINE, [])}
            for arm, runs in group.items():
                # The baseline is wide and pale beneath, or a coinciding curve would hide it.
                width, alpha = (5.0, 0.45) if arm == BASELINE else (1.6, 1.0)
                for run in runs:
                    step, ne = ne_rows(run)
                    style = {"color": arm_colour(arm), "linestyle": ARM_LINE.get(arm, "-")}
                    label = f"{arm}, {setting.mode}" if run is runs[0] else None
                    upper.plot(step, ne, linewidth=width, alpha=alpha, label=label, **style)
                    if arm != BASELINE and run.config.seed in baseline:
                        lower.plot(step, ne - baseline[run.config.seed], linewidth=1.4, **style)
            upper.set_title(setting.text())
            lower.axhline(0, color=arm_colour(BASELINE), linewidth=3, alpha=0.45, zorder=0)
            lower.set_xlabel("step")
            if column == 0:
                upper.set_ylabel("NE, progressive\n(lower is better)")
                lower.set_ylabel(f"NE − NE({BASELINE})")
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure
