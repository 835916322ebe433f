"""Exposed embedding communication against the collision rate that real ranks counted (paper, Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import arm_key, by_setting, spread
from repro.report.figures.exposed import METRIC, PRIORITY, line_fit
from repro.report.style import ARM_LINE, ARM_MARKER, WIDTH, arm_colour, styled
from repro.tracking.record import RunRecord

RATE = "exchange_collision_pct"

Curve = dict[float, float]
"""Rows of the exchange that collide, per cent -> the metric; ascending."""


def curves(records: Sequence[RunRecord], metric: str = METRIC) -> dict[str, Curve]:
    """Each arm's curve. TorchRec counts no rows, so a setting's rate is the one that its prioritized run counted: all
    arms train the same global batches. Settings without such a run are left out.

    Raises:
        InputError: runs of several world sizes or caps, or one without the metric.
    """
    found: dict[str, Curve] = {}
    settings = [(setting, group) for setting, group in by_setting(records).items() if PRIORITY in group]
    if len({(setting.mode, setting.gpus, setting.batch, setting.max_uih) for setting, _ in settings}) > 1:
        raise InputError("a sweep of collision rates needs one mode, world size, batch and cap")
    for _, group in settings:
        rate = spread(group[PRIORITY], RATE).mean
        for arm, runs in group.items():
            found.setdefault(arm, {})[rate] = spread(runs, metric).mean
    return {arm: dict(sorted(found[arm].items())) for arm in sorted(found, key=arm_key)}


def collision_sweep_figure(records: Sequence[RunRecord]) -> Figure:
    """A mark a run, and the least-squares line of the prioritized arm.

    Raises:
        InputError: as `curves`.
    """
    with styled():
        figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
        axes = figure.subplots()
        for arm, curve in curves(records).items():
            colour, rates = arm_colour(arm), list(curve)
            marker = ARM_MARKER.get(arm, "o")
            axes.plot(rates, list(curve.values()), linestyle="none", marker=marker, color=colour, label=arm)
            if arm == PRIORITY and len(curve) > 1:
                start, slope, r2 = line_fit(curve)
                ends = np.array([0, rates[-1]])
                label = f"{arm}, least squares, R² {r2:.3f}"
                axes.plot(ends, start + slope * ends, linestyle=ARM_LINE[arm], color=colour, label=label)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rows that collide, % of those exchanged (counted)")
        axes.set_ylabel("exposed embedding exchange, ms")
        axes.set_title(next(iter(by_setting(records))).mode)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure
