"""Exposed embedding communication: what it depends on, and which part of the gain is whose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, by_setting, spread
from repro.report.figures import exposed_figure
from repro.report.figures.exposed import (
    EXCLUSIVE,
    METRIC,
    PRIORITY,
    SYNCHRONOUS,
    UNSPLIT,
    at_shares,
    line_fit,
    low_shares,
    swept_run,
)
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord

_TYPICAL = 10
"""Per cent of rows that collide, near the middle of the published range."""


def exposed_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Exposed embedding communication (paper, Fig. 9)."""
    title = "Exposed embedding communication"
    question = "How much embedding communication stays exposed, and what does it depend on?"
    runs = [run for run in runs_of(records, "fig09") if run.config.mode == "simulated"]
    if not runs:
        return not_run("exposed", title, question, "repro run fig09")
    values = [value for value in published if value.experiment == "fig09" and value.metric == METRIC]
    paper = ", ".join(f"{value.text()} with {value.arm} ({value.confidence})" for value in values)
    clauses = _clauses(runs)
    return Section(
        anchor="exposed",
        title=title,
        question=question,
        answer=sentence_of([*clauses, *([f"the paper, at UIH 8K: {paper}"] if paper else [])]),
        illustrations=(
            illustrate(
                exposed_figure(runs, published),
                folder,
                "exposed",
                "Simulated. Left: at the data set's own collision rate (section Collisions). Right: the "
                "rate overridden (assumption A19), with the least-squares line; hollow marks leave out exclusive "
                "gradients in flight while the host prepares the next step (A5), which count as exposed by definition "
                "but hold up nobody. Horizontal lines do not depend on the rate: TorchRec's arms send a row for every "
                "lookup (A10), the dotted line sends distinct rows, but waits for all (A15): what lies above it is "
                "gained by deduplication, what lies below by priority. Stars are the paper's points. The "
                "baseline's time is bytes over bandwidth: ids an event, width of a row and mean (not longest) history "
                "decide it, none of which the paper's notes give, so milliseconds differ; ratios are what to compare.",
            ),
        ),
        table=Table(header=("Setting", "Arm", *_COLUMNS), rows=_rows(runs)),
        command=commands(runs),
    )


_COLUMNS = (
    "Exposed embedding, ms",
    "of it exclusive, ms",
    "Step, ms",
    "Collisions, % of rows",
    "% of exchanged rows",
    "Lookups saved by dedup, %",
)
_METRICS = (METRIC, EXCLUSIVE, "step_ms", "collision_pct", "exchange_collision_pct", "dedup_saving_pct")


def _rows(runs: Sequence[RunRecord]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for setting, group in by_setting(runs).items():
        for arm, of_arm in group.items():
            known = of_arm[0].metrics
            cells = (f"{spread(of_arm, name).mean:.2f}" if name in known else "none" for name in _METRICS)
            rows.append((setting.text(), arm, *cells))
    swept = swept_run(runs)
    if swept is not None:
        run = swept[0]
        for share in at_shares(run):
            name = "same rows, synchronous" if share == SYNCHRONOUS else f"{PRIORITY}, {share} % overridden"
            cells = (f"{run.metric(f'{metric}_at_{share}pct'):.2f}" for metric in _METRICS[:3])
            saving = f"{run.metric('dedup_saving_pct'):.2f}"
            rows.append((f"simulated, UIH {run.config.max_uih:,}", name, *cells, "overridden", f"{share:.2f}", saving))
    return tuple(rows)


def _clauses(runs: Sequence[RunRecord]) -> list[str]:
    swept = swept_run(runs)
    if swept is None or not {BASELINE, UNSPLIT} <= swept[1].keys():
        return ["no setting has all of the arms that this section compares"]
    run, arms = swept
    before, unsplit = arms[BASELINE].metric(METRIC), arms[UNSPLIT].metric(METRIC)
    everywhere, points = at_shares(run), low_shares(run)
    start, slope, r2 = line_fit(points)
    synchronous, typical = everywhere[SYNCHRONOUS], everywhere[_TYPICAL]
    waited = typical - at_shares(run, EXCLUSIVE)[_TYPICAL]
    own, share = run.metric(METRIC), run.metric("exchange_collision_pct")
    return [
        f"simulated, UIH {run.config.max_uih:,}, if {_TYPICAL} % of the exchanged rows collide: {before:.1f} ms with "
        f"{BASELINE}, {unsplit:.1f} ms with {UNSPLIT}, {synchronous:.1f} ms when distinct rows only are sent, and "
        f"{typical:.1f} ms with priority ({before / typical:.1f}× less than {BASELINE}), of which {waited:.1f} ms are "
        "waited for",
        f"over {min(points)}-{max(points)} % it is linear in the rate ({start:.2f} ms + {slope:.3f} ms a per cent, R² "
        f"{r2:.3f}), while {BASELINE} does not depend on it",
        f"at the data set's own rate ({share:.0f} % of exchanged rows) priority keeps {own:.1f} ms, so there it gains "
        f"{'nothing' if own >= synchronous else f'{synchronous - own:.1f} ms'} over deduplication alone",
    ]
