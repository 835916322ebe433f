"""Requests a second against the number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE
from repro.report.figures import along
from repro.report.figures.sweep import Curve, Panel, sweep_panels
from repro.report.published import PaperValue
from repro.report.sections.base import (
    Section,
    Table,
    commands,
    illustrate,
    not_run,
    ring_note,
    runs_of,
    sentence_of,
)
from repro.tracking.record import RunRecord


def throughput_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """QPS against GPUs (paper, Fig. 11 top)."""
    title = "Throughput against cluster size"
    question = "How many requests a second does each arm train, and does the gain grow with the cluster?"
    runs = [run for run in runs_of(records, "fig11_qps") if run.config.mode == "simulated"]
    if not runs:
        return not_run("throughput", title, question, "repro run fig11_qps")
    qps, step = (sweep_panels(runs, "gpus", metric) for metric in ("qps", "step_ms"))
    rows = []
    for (shared, panel), (_, steps) in zip(qps, step, strict=True):
        for arm, curve in panel.items():
            for gpus, found in sorted(curve.items()):
                cells = f"{found.mean:,.0f}", _ratio(panel, arm, gpus), f"{steps[arm][gpus].mean:.2f}"
                rows.append((shared, arm, f"{gpus}", *cells))
    sdd = [value for value in published if value.metric == "metadata_saving_ms"]
    paper = [
        f"the paper: sdd saves {value.text()} of metadata ({value.confidence}) and stays near {BASELINE}"
        for value in sdd
    ]
    return Section(
        anchor="throughput",
        title=title,
        question=question,
        answer=sentence_of([*map(_says, qps), *(_saved(panel) for panel in step), *paper]),
        illustrations=(
            illustrate(
                along(runs, "gpus", "qps", "requests a second"),
                folder,
                "throughput",
                "Simulated. The gain of balance+priority holds deduplication as well as priority (the section before "
                "tells them apart), at the collision rate of the data set, which grows with the global batch."
                + ring_note(runs),
            ),
        ),
        table=Table(
            header=("Setting", "Arm", "GPUs", "Requests/s", f"× {BASELINE}", "Step, ms"), rows=tuple(rows), names=2
        ),
        command=commands(runs),
    )


def _ratio(curves: dict[str, Curve], arm: str, gpus: int) -> str:
    if gpus not in curves.get(BASELINE, {}):
        return "no baseline"
    return f"{curves[arm][gpus].mean / curves[BASELINE][gpus].mean:.3f}"


def _says(panel: Panel) -> str:
    shared, curves = panel
    if BASELINE not in curves:
        return f"{shared}: no {BASELINE} run to compare with"
    worlds = sorted(curves[BASELINE])
    clauses = []
    for arm, curve in curves.items():
        if arm != BASELINE:
            ratios = [f"{curve[gpus].mean / curves[BASELINE][gpus].mean:.2f}" for gpus in worlds if gpus in curve]
            clauses.append(f"{arm} {' / '.join(ratios)}×")
    return f"{shared}, at {' / '.join(map(str, worlds))} GPUs against {BASELINE}: {', '.join(clauses)}"


def _saved(panel: Panel) -> str:
    _, curves = panel
    if not {BASELINE, "sdd"} <= curves.keys():
        return "sdd was not run"
    gpus = max(set(curves[BASELINE]) & set(curves["sdd"]))
    saved = curves[BASELINE][gpus].mean - curves["sdd"][gpus].mean
    return (
        f"sdd saves {saved:.1f} ms a step at {gpus} GPUs: here metadata is ids alone, without the host's share of "
        "distributing them, which the cost model does not have"
    )
