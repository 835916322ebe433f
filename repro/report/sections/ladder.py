"""The ladder: what each rung gains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Group, Setting, by_setting, ratio_to_baseline, spread
from repro.report.figures import ablation_bars
from repro.report.published import PaperValue
from repro.report.sections.base import (
    BALANCED,
    Section,
    Table,
    answer_by_mode,
    commands,
    illustrate,
    modes_of,
    not_run,
    ring_note,
    runs_of,
)
from repro.tracking.record import RunRecord


def ladder_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """What each rung of the ladder gains."""
    question = "What does each technique gain on top of the one before?"
    runs = [*runs_of(records, "ladder"), *runs_of(records, "ladder_emulated")]
    if not runs:
        return not_run("ladder", "The ablation ladder", question, "repro run ladder")
    shown = [value for value in published if value.experiment == "fig08a"]
    groups = by_setting(runs)
    rows = []
    for setting, group in groups.items():
        for arm in group:
            rows.append((setting.text(), arm, *_ladder_cells(group, arm)))
    header = (
        "Setting",
        "Arm",
        "Straggler, %",
        "Bubble, %",
        "Exposed comm., ms",
        "Step, ms",
        "Requests/s",
        "× baseline",
    )
    caption = (
        f"{modes_of(runs)}; outlined bars are the paper's own values (confidence mark in brackets). Every ratio is to "
        f"{BASELINE} of the same mode, data set and world size. Milliseconds compare within one setting only."
        + ring_note(runs)
    )
    return Section(
        anchor="ladder",
        title="The ablation ladder",
        question=question,
        answer=answer_by_mode(groups, _ladder_sentence),
        illustrations=(illustrate(ablation_bars(runs, shown), folder, "ladder", caption),),
        table=Table(header=header, rows=tuple(rows)),
        command=commands(runs),
    )


def _ladder_cells(group: Group, arm: str) -> tuple[str, ...]:
    runs = group[arm]
    ratio = ratio_to_baseline(group, arm, "qps")
    return (
        *(f"{spread(runs, name).mean:.2f}" for name in ("straggler_pct", "bubble_pct", "exposed_comm_ms", "step_ms")),
        f"{spread(runs, 'qps').mean:,.0f}",
        f"{ratio.mean:.3f}" if ratio else "no baseline",
    )


def _ladder_sentence(setting: Setting, group: Group) -> str | None:
    gains = {arm: ratio_to_baseline(group, arm, "qps") for arm in group if arm != BASELINE}
    if gains.get(BALANCED) is None:
        return None
    speeds = ", ".join(f"{100 * (ratio.mean - 1):+.1f} % with {arm}" for arm, ratio in gains.items() if ratio)
    before, after = (spread(group[arm], "straggler_pct").mean for arm in (BASELINE, BALANCED))
    return (
        f"{setting.text()}: {BALANCED} changes straggler wait from {before:.1f} % to {after:.1f} % of the step; "
        f"requests/s change by {speeds}"
    )
