"""Ablation bars: what each rung of the ladder does to stragglers, exposed communication and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.errors import InputError
from repro.report.comparison import (
    BASELINE,
    MODE_ORDER,
    Group,
    Setting,
    Spread,
    arm_key,
    by_setting,
    events,
    ratio_to_baseline,
    spread,
)
from repro.report.published import PaperValue
from repro.report.style import INK, WIDTH, arm_handles, bar_style, mode_handles, styled
from repro.tracking.record import RunRecord


@dataclass(frozen=True)
class Bar:
    """One bar: an arm's value in one group (a setting, or a published figure)."""

    group: str
    mode: str
    arm: str
    value: Spread


_PANELS = (
    ("straggler_pct", "Straggler wait, % of step", "{:.1f}"),
    ("exposed_comm_ms", f"Exposed communication, ratio to {BASELINE}", "{:.2f}"),
    ("qps", f"Requests/s, ratio to {BASELINE}", "{:.2f}"),
)


def ablation_bars(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> Figure:
    """Bars by arm, grouped by mode, world size and data set. Times appear as ratios within one group only: absolute
    milliseconds of a CPU and of a simulated GPU share no axis.

    Raises:
        InputError: no runs, or a run without one of the metrics.
    """
    if not records:
        raise InputError("ablation bars need at least one run")
    panels = [ablation_values(records, published, metric) for metric, _, _ in _PANELS]
    arms = sorted({bar.arm for bars in panels for bar in bars}, key=arm_key)
    groups = list(dict.fromkeys(bar.group for bar in panels[0]))
    modes = [mode for mode in MODE_ORDER if any(bar.mode == mode for bar in panels[0])]
    with styled():
        figure = Figure(figsize=(WIDTH, 6.6), layout="constrained")
        for axes, bars, (_, title, label) in zip(
            figure.subplots(len(_PANELS), 1, sharex=True), panels, _PANELS, strict=True
        ):
            _draw(axes, bars, groups, arms, label)
            for x, group in enumerate(groups):
                if any(bar.group == group for bar in bars):
                    continue
                reason = "not published" if group.startswith("paper") else f"no {BASELINE} run"
                axes.text(x, 0.5, reason, transform=axes.get_xaxis_transform(), ha="center", style="italic")
            axes.set_title(title)
        axes.set_xticks(range(len(groups)), groups)
        handles = [*arm_handles(arms), *mode_handles(modes)]
        figure.legend(handles, [*arms, *modes], loc="outside upper center", ncols=len(handles))
    return figure


def ablation_values(records: Sequence[RunRecord], published: Sequence[PaperValue], metric: str) -> list[Bar]:
    """The bars of one panel: straggler % as it is, every other metric as a ratio to the baseline."""
    bars = []
    if metric == "straggler_pct":
        bars = [
            Bar(f"paper\n{value.gpus} GPUs\n{value.figure} ({value.confidence})", "paper", value.arm, _exact(value))
            for value in published
            if value.metric == metric and value.gpus is not None and not value.is_bound
        ]
    for setting, group in by_setting(records).items():
        for arm in group:
            value = _value(group, arm, metric)
            if value is not None:
                bars.append(Bar(_label(setting), setting.mode, arm, value))
    return bars


def _value(group: Group, arm: str, metric: str) -> Spread | None:
    return spread(group[arm], metric) if metric == "straggler_pct" else ratio_to_baseline(group, arm, metric)


def _exact(value: PaperValue) -> Spread:
    return Spread.of([value.value])


def _label(setting: Setting) -> str:
    return f"{setting.mode}\n{setting.world}\n{setting.dataset}\nUIH {events(setting.max_uih)}, batch {setting.batch}"


def _draw(axes: Axes, bars: list[Bar], groups: list[str], arms: list[str], label: str) -> None:
    width = 0.8 / len(arms)
    for bar in bars:
        x = groups.index(bar.group) + (arms.index(bar.arm) - (len(arms) - 1) / 2) * width
        axes.bar(x, bar.value.mean, width * 0.92, **bar_style(bar.arm, bar.mode))
        if bar.value.high > bar.value.low:
            axes.vlines(x, bar.value.low, bar.value.high, color=INK, linewidth=1)
        axes.annotate(
            label.format(bar.value.mean),
            (x, max(bar.value.high, 0)),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
        )
    axes.margins(y=0.18)
    axes.set_ylim(bottom=0)
    axes.grid(axis="x", visible=False)
