"""Where the milliseconds of a step go, arm by arm, and what that makes of the published change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from repro.errors import InputError
from repro.report.comparison import BASELINE, Group, by_setting, ratio_to_baseline, spread
from repro.report.figures.ledger import KINDS, kind_shares
from repro.report.published import PaperValue
from repro.report.shares import techniques
from repro.report.style import INK, MODE_HATCH, WIDTH, bar_style, paper_style, styled
from repro.tracking.record import RunRecord

METRIC = "exposed_comm_ms"
CHANGE = "exposed_comm_change_pct"


def headline_figure(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """Left: exposed communication against the baseline's, with the paper's value. Right: the step, in milliseconds.

    Raises:
        InputError: no runs, several settings, or no baseline.
    """
    group, mode = one_setting(records)
    with styled():
        figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(group)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.5), sharey=True)
        _draw_changes(left, group, mode, published)
        _legend(figure, _draw_steps(right, group, mode))
    return figure


def steps_figure(records: Sequence[RunRecord]) -> Figure:
    """The step of every arm, in milliseconds by kind; arms with fewer techniques first.

    Raises:
        InputError: no runs, several settings, or no baseline.
    """
    group, mode = one_setting(records)
    group = {arm: group[arm] for arm in sorted(group, key=lambda arm: len(techniques(group[arm][0].config.arm)))}
    with styled():
        figure = Figure(figsize=(WIDTH, 1.2 + 0.36 * len(group)), layout="constrained")
        _legend(figure, _draw_steps(figure.subplots(), group, mode))
    return figure


def one_setting(records: Sequence[RunRecord]) -> tuple[Group, str]:
    """The runs by arm, and their mode.

    Raises:
        InputError: no runs, several settings, or no baseline.
    """
    groups = by_setting(records)
    if len(groups) != 1:
        raise InputError(f"this figure needs the runs of one setting, got {len(groups)}")
    ((setting, group),) = groups.items()
    if BASELINE not in group:
        raise InputError(f"this figure needs a run of {BASELINE}")
    return group, setting.mode


def change_pct(group: Group, arm: str) -> float:
    """Exposed communication of an arm against the baseline's, per cent.

    Raises:
        InputError: the baseline exposes none, so there is nothing to compare with.
    """
    ratio = ratio_to_baseline(group, arm, METRIC)
    if ratio is None:
        raise InputError(f"{BASELINE} exposes no communication, so no change against it exists")
    return 100 * (ratio.mean - 1)


def _draw_changes(axes: Axes, group: Group, mode: str, published: Sequence[PaperValue]) -> None:
    arms = list(group)
    for y, arm in enumerate(arms):
        if arm == BASELINE:
            axes.annotate("baseline", (0, y), xytext=(-4, 0), textcoords="offset points", ha="right", va="center")
            continue
        found = change_pct(group, arm)
        axes.barh(y, found, 0.72, **bar_style(arm, mode))
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        axes.annotate(f"{found:+.1f}", (min(found, 0), y), xytext=(4, 0), textcoords="offset points", va="center",
                      fontsize=8, bbox=box if found < -15 else None)  # fmt: skip
    for value in published:
        if value.metric == CHANGE and value.arm in arms:
            label = f"{value.arm}, paper, {value.figure} ({value.confidence}): {value.text()}"
            style = paper_style(value) | {"markerfacecolor": "white", "label": label}
            axes.plot(value.value, arms.index(value.arm), **style)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8)
    axes.set_title(f"{mode}: exposed communication")
    axes.set_xlabel(f"change against {BASELINE}, %")
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.grid(axis="y", visible=False)


def _draw_steps(axes: Axes, group: Group, mode: str) -> list[str]:
    """Draw the stacked bars; the kinds that occur."""
    bars = {arm: _milliseconds(runs) for arm, runs in group.items()}
    used = [kind for kind in KINDS if any(parts[kind] > 0 for parts in bars.values())]
    longest = max(sum(parts.values()) for parts in bars.values())
    for y, parts in enumerate(bars.values()):
        left = 0.0
        for kind in used:
            colour, text = KINDS[kind]
            style: dict[str, Any] = {"color": colour, "edgecolor": INK, "linewidth": 0.4, "hatch": MODE_HATCH[mode]}
            axes.barh(y, parts[kind], 0.72, left=left, **style)
            if parts[kind] > 0.06 * longest:
                middle, box = left + parts[kind] / 2, {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
                axes.text(middle, y, f"{parts[kind]:.1f}", ha="center", va="center", color=text, fontsize=8, bbox=box)
            left += parts[kind]
        axes.annotate(f"{left:.1f}", (left, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), list(bars))
    if not axes.yaxis_inverted():
        axes.invert_yaxis()
    axes.set_xlim(0, 1.08 * longest)
    axes.set_title(f"{mode}: a step")
    axes.set_xlabel("ms, mean over ranks and timed steps")
    axes.grid(axis="y", visible=False)
    return used


def _milliseconds(runs: Sequence[RunRecord]) -> dict[str, float]:
    """Kind -> milliseconds of a step, mean over seeds."""
    step = spread(runs, "step_ms").mean
    shares = [kind_shares(run) for run in runs]
    return {kind: step * sum(share[kind] for share in shares) / len(shares) / 100 for kind in KINDS}


def _legend(figure: Figure, used: list[str]) -> None:
    handles = [Patch(facecolor=KINDS[kind][0], edgecolor=INK, linewidth=0.4) for kind in used]
    figure.legend(handles, used, loc="outside upper center", ncols=4)
