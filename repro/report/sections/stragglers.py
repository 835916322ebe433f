"""Straggler wait between real ranks, by partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Group, by_setting, ratio_to_baseline, spread
from repro.report.figures import ablation_bars
from repro.report.published import PaperValue
from repro.report.sections.base import (
    Section,
    Table,
    commands,
    illustrate,
    modes_of,
    not_run,
    paper_text,
    runs_of,
    sentence_of,
)
from repro.tracking.record import RunRecord

_METRIC = "straggler_pct"
_COLUMNS = {
    _METRIC: "Straggler, %",
    "imbalance": "Busiest / mean rank",
    "exposed_balance_pct": "Balancing exposed, % of step",
    "step_ms": "Step, ms",
}


def stragglers_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """What each partition leaves of the straggler wait, measured and emulated on real ranks."""
    title = "Stragglers between real ranks"
    question = "How much straggler wait does each partition leave between real ranks?"
    runs = runs_of(records, "stragglers")
    if not runs:
        return not_run("stragglers", title, question, "repro run stragglers")
    groups = by_setting(runs)
    paper = paper_text(published, "fig08a", _METRIC)
    clauses = [f"{setting.text()}: {_says(group)}" for setting, group in groups.items()]
    return Section(
        anchor="stragglers",
        title=title,
        question=question,
        answer=sentence_of([*clauses, f"the paper, on 64 GPUs: {paper}"] if paper else clauses),
        illustrations=(
            illustrate(
                ablation_bars(runs),
                folder,
                "stragglers",
                f"{modes_of(runs)}: all arms were trained side by side by the same ranks on the same global batches. "
                "What equal work still leaves is the machine's own noise, which no partition removes.",
            ),
        ),
        table=Table(
            header=("Setting", "Arm", *_COLUMNS.values(), f"{BASELINE} / arm"),
            rows=tuple(
                (setting.text(), arm, *_cells(group, arm)) for setting, group in groups.items() for arm in group
            ),
        ),
        command=commands(runs),
    )


def _cells(group: Group, arm: str) -> tuple[str, ...]:
    ratio = ratio_to_baseline(group, arm, _METRIC)
    known = group[arm][0].metrics
    return (
        *(f"{spread(group[arm], name).mean:.2f}" if name in known else "none" for name in _COLUMNS),
        f"{1 / ratio.mean:.1f}" if ratio and ratio.mean else "none left",
    )


def _says(group: Group) -> str:
    if BASELINE not in group:
        return f"no {BASELINE} run to compare with"
    before = spread(group[BASELINE], _METRIC).mean
    after = {arm: spread(runs, _METRIC).mean for arm, runs in group.items() if arm != BASELINE}
    clauses = (
        f"{value:.1f} % with {arm} ({f'{before / value:.1f}× less' if value else 'none left'})"
        for arm, value in after.items()
    )
    return f"{before:.1f} % of the step with {BASELINE}, {', '.join(clauses)}"
