"""Straggler share against the longest history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import events
from repro.report.figures import straggler_against_uih
from repro.report.figures.straggler import straggler_curves
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, paper_text, runs_of, sentence_of
from repro.tracking.record import RunRecord


def straggler_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Straggler % against max UIH."""
    title, question = "Stragglers against UIH length", "How does straggler time grow with the longest history?"
    runs = [run for run in runs_of(records, "fig08a") if run.config.mode == "simulated"]
    if not runs:
        return not_run("straggler", title, question, "repro run fig08a")
    curves = straggler_curves(runs)
    rows, sentences = [], []
    for (mode, dataset, gpus), panel in curves.items():
        caps = sorted({cap for curve in panel.values() for cap in curve})
        for cap in caps:
            cells = (f"{curve[cap].mean:.2f}" if cap in curve else "not run" for curve in panel.values())
            rows.append((f"{mode}, {gpus} GPUs, {dataset}", f"{cap:,}", *cells))
        ends = ", ".join(
            f"{curve[caps[-1]].mean:.1f} % with {arm}" for arm, curve in panel.items() if caps[-1] in curve
        )
        sentences.append(f"{mode}, {gpus} GPUs, {dataset}: at max UIH {events(caps[-1])} it is {ends}")
    paper = paper_text(published, "fig08a", "straggler_pct")
    arms = tuple(dict.fromkeys(arm for panel in curves.values() for arm in panel))
    return Section(
        anchor="straggler",
        title=title,
        question=question,
        answer=sentence_of([*sentences, f"the paper: {paper}"] if paper else sentences),
        illustrations=(
            illustrate(
                straggler_against_uih(runs, published),
                folder,
                "straggler_uih",
                "Simulated (dots, joined per arm). Stars are the paper's points, triangles its bounds, each with its "
                "confidence mark; no line joins them to the simulation.",
            ),
        ),
        table=Table(header=("Setting", "Max UIH", *(f"{arm}, %" for arm in arms)), rows=tuple(rows), names=1),
        command=commands(runs),
    )
