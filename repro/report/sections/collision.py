"""How many rows consecutive global batches share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.figures import collision_figure
from repro.report.figures.collision import MEAN, P99
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord


def collision_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Collision rate of consecutive global batches (paper, Fig. 3)."""
    title, question = "Collisions", "Which share of the rows that a global batch reads does the one before update?"
    runs = sorted(runs_of(records, "fig03"), key=lambda run: (run.config.dataset, run.config.global_batch))
    if not runs:
        return not_run("collision", title, question, "repro run fig03")
    datasets = dict.fromkeys(run.config.dataset for run in runs)
    clauses = []
    for dataset in datasets:
        shares = [run.metric(MEAN) for run in runs if run.config.dataset == dataset]
        clauses.append(f"{dataset}: {min(shares):.0f} % to {max(shares):.0f} %, more in larger batches")
    paper = ", ".join(f"{value.text()} ({value.confidence})" for value in published if value.metric in (MEAN, P99))
    if paper:
        clauses.append(
            f"the paper: {paper}; its notes disagree, and other rates are shown by overriding the rate (next section)"
        )
    rows = tuple(
        (
            f"{run.config.dataset}, UIH {run.config.max_uih:,}",
            f"{run.config.gpus} × {run.config.batch}",
            *(f"{run.metric(name):.1f}" for name in (MEAN, P99)),
        )
        for run in runs
    )
    return Section(
        anchor="collision",
        title=title,
        question=question,
        answer=sentence_of(clauses),
        illustrations=(
            illustrate(
                collision_figure(runs, published),
                folder,
                "collision",
                "Counted on the ids of real or generated data sets, no cost model involved: distinct rows of all "
                "tables over all ranks. Labels are GPUs × batch. Lines are the paper's, for a setting it does not "
                "give; the notes on it disagree.",
            ),
        ),
        table=Table(header=("Data set", "GPUs × batch", "Mean, %", "p99, %"), rows=rows),
        command=commands(runs),
    )
