"""The workload before anything is done about it, beside what the paper reports of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, events
from repro.report.figures.workload import METRICS, workload_against_uih, workload_curves
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord

_PUBLISHED_IN = ("fig02", "fig08a")
"""Experiments whose published baseline values speak of the workload."""


def workload_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Sparsity and straggler % of the baseline against max UIH."""
    title, question = (
        "The workload",
        "How uneven is it before anything is done about it, and is that what the paper had?",
    )
    runs = [run for run in runs_of(records, "fig02") if run.config.mode == "simulated"]
    if not runs:
        return not_run("workload", title, question, "repro run fig02")
    sparsity, straggler = (workload_curves(runs, metric) for metric in METRICS)
    rows = tuple(
        (f"{dataset}, {gpus} GPUs x {batch}", f"{cap:,}", f"{sparsity[size][cap]:.1f}", f"{value:.1f}")
        for size, curve in straggler.items()
        for cap, value in curve.items()
        for dataset, gpus, batch in [size]
    )
    paper = [
        value
        for value in published
        if value.experiment in _PUBLISHED_IN and value.arm == BASELINE and value.metric in METRICS
    ]
    return Section(
        anchor="workload",
        title=title,
        question=question,
        answer=sentence_of([*(_ends(size, curve) for size, curve in straggler.items()), *map(_says, paper)]),
        illustrations=(
            illustrate(
                workload_against_uih(runs, paper),
                folder,
                "workload_uih",
                "Simulated baseline (dots, joined by size). Outlined marks are the paper's, with their confidence: a "
                "triangle is a lower bound. The data set's lengths were fitted to these marks, so agreement here is by "
                "construction; what the techniques do with it is not.",
            ),
        ),
        table=Table(header=("Data set, size", "Max UIH", "sparsity, %", "straggler, %"), rows=rows),
        command=commands(runs),
    )


def _ends(size: tuple[str, int, int], curve: dict[int, float]) -> str:
    dataset, gpus, batch = size
    last = max(curve)
    middle = min(curve, key=lambda cap: abs(cap - 8_000))
    return (
        f"simulated, {dataset}, {gpus} GPUs x {batch}: straggler wait {curve[middle]:.1f} % at max UIH "
        f"{events(middle)}, {curve[last]:.1f} % at {events(last)}"
    )


def _says(value: PaperValue) -> str:
    cap = "" if value.max_uih is None else f" at {events(value.max_uih)}"
    return f"the paper, {value.figure}: {value.text()}{cap} ({value.confidence})"
