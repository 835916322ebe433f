"""The headline claim: exposed communication at the paper's largest size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Group, by_setting, setting_of, spread
from repro.report.figures import headline_figure
from repro.report.figures.exposed import EXCLUSIVE, PRIORITY, at_shares
from repro.report.figures.headline import CHANGE, METRIC, change_pct
from repro.report.published import PaperValue
from repro.report.sections.base import FULL, Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.report.verdict import BAND_TEXT, verdict_of_change
from repro.tracking.record import RunRecord

_TYPICAL = 10
"""Per cent of rows that collide, near the middle of the published range."""
_HEADER = (
    "Setting",
    "Arm",
    "Exposed comm., ms",
    "of it exclusive, ms",
    "Change, %",
    "without exclusive, %",
    "at 10 % collisions, %",
    "without exclusive, %",
    "Contention, % of step",
    "Bubbles, ms",
    "Step, ms",
    "Requests/s",
)


def headline_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Exposed communication at the paper's largest size (abstract)."""
    title, question = "The headline", "How much communication is still exposed at the paper's largest size?"
    runs = largest(runs_of(records, "headline"))
    if not runs:
        return not_run("headline", title, question, "repro run headline")
    ((setting, group),) = by_setting(runs).items()
    return Section(
        anchor="headline",
        title=title,
        question=question,
        answer=sentence_of(
            [f"{setting.text()}: {_changes(group)}", *_verdicts(group, published), *_compute(group, published)]
        ),
        illustrations=(
            illustrate(
                headline_figure(runs, published),
                folder,
                "headline",
                f"{setting.mode.capitalize()}; the star is the paper's value. {BAND_TEXT.capitalize()}. Exposed is "
                "what moves while nothing computes, and that includes exclusive rows in flight beside host work or "
                "waiting, which mostly hold up nobody (`of it exclusive`): read the step, too. freescale sends all "
                "AllGathers and AllToAlls over the host-staged ring, freescale_hidden those behind dense work only. By "
                "itself the ring is slower than NCCL (a message latency for each rank, and host memory that eight GPUs "
                "share: A21): rows that a step waits for lose by it, while dense work wins back what contention took. "
                "Columns at 10 % override the collision rate (A19), which the paper's notes put near there. Nothing "
                "here was fitted to the paper's FreeScale.",
            ),
        ),
        table=Table(header=_HEADER, rows=tuple((setting.text(), arm, *_cells(group, arm)) for arm in group)),
        command=commands(runs),
    )


def largest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of the largest setting that has a baseline to compare with; none when there is none."""
    settings = [setting for setting, group in by_setting(runs).items() if BASELINE in group]
    if not settings:
        return []
    chosen = max(settings, key=lambda setting: (setting.gpus, setting.max_uih, setting.batch))
    return [run for run in runs if setting_of(run) == chosen]


def _cells(group: Group, arm: str) -> tuple[str, ...]:
    before, run = spread(group[BASELINE], METRIC).mean, group[arm][0]
    exposed, exclusive, contention, bubble, step = (
        spread(group[arm], name).mean for name in (METRIC, EXCLUSIVE, "contention_pct", "bubble_pct", "step_ms")
    )
    overridden = ("none", "none")
    if _TYPICAL in at_shares(run, METRIC):
        typical, hidden = at_shares(run, METRIC)[_TYPICAL], at_shares(run, EXCLUSIVE)[_TYPICAL]
        overridden = (_against(typical, before), _against(typical - hidden, before))
    return (
        f"{exposed:.2f}",
        f"{exclusive:.2f}",
        _against(exposed, before),
        _against(exposed - exclusive, before),
        *overridden,
        f"{contention:.2f}",
        f"{bubble * step / 100:.2f}",
        f"{step:.2f}",
        f"{spread(group[arm], 'qps').mean:,.0f}",
    )


def _against(value: float, before: float) -> str:
    return f"{100 * (value / before - 1):+.1f}"


def _changes(group: Group) -> str:
    arms = ", ".join(f"{change_pct(group, arm):+.1f} % with {arm}" for arm in group if arm != BASELINE)
    return f"exposed communication, {spread(group[BASELINE], METRIC).mean:.1f} ms with {BASELINE}, changes by {arms}"


def _verdicts(group: Group, published: Sequence[PaperValue]) -> list[str]:
    clauses = []
    for value in published:
        if value.metric == CHANGE and value.arm in group:
            verdict = verdict_of_change(value, change_pct(group, value.arm))
            bubbles = _against(_bubble_ms(group, value.arm), _bubble_ms(group, BASELINE))
            clauses.append(
                f"the paper: {value.text()} with {value.arm} ({value.confidence}), so {verdict}; of all bubbles, the "
                f"abstract's word, {bubbles} %"
            )
    run = group[FULL][0] if FULL in group else None
    if run is not None and _TYPICAL in at_shares(run, METRIC):
        before = spread(group[BASELINE], METRIC).mean
        clauses.append(
            f"{run.metric('exchange_collision_pct'):.0f} % of the exchanged rows collide here; if {_TYPICAL} % did: "
            + ", ".join(
                f"{_against(at_shares(group[arm][0], METRIC)[_TYPICAL], before)} % with {arm}"
                for arm in group
                if _TYPICAL in at_shares(group[arm][0], METRIC)
            )
        )
    return clauses


def _compute(group: Group, published: Sequence[PaperValue]) -> list[str]:
    """What the ring gives back to compute, beside the paper's value for kernels under overlap."""
    if not {FULL, PRIORITY} <= group.keys():
        return []
    before, after = (spread(group[arm], "step_ms").mean - _bubble_ms(group, arm) for arm in (PRIORITY, FULL))
    paper = [
        f" ({value.text()} in the paper, {value.figure}, for kernels under overlap, {value.confidence})"
        for value in published
        if value.metric == "kernel_time_change_pct"
    ]
    return [f"compute of a step changes by {_against(after, before)} % from {PRIORITY} to {FULL}{''.join(paper)}"]


def _bubble_ms(group: Group, arm: str) -> float:
    return spread(group[arm], "bubble_pct").mean * spread(group[arm], "step_ms").mean / 100
