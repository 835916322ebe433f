"""Straggler share against batch size and against the number of GPUs, a curve a partition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE
from repro.report.figures import along
from repro.report.figures.sweep import KNOB_NAME, Knob, Panel, sweep_panels
from repro.report.published import PaperValue
from repro.report.sections.base import BALANCED, Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord

_METRIC = "straggler_pct"


def batch_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Straggler % against batch size (paper, Fig. 8b)."""
    question = "How does straggler time fall as batches grow, and how much of it does each partition remove?"
    return _section(records, published, folder, "fig08b", "batch", "Stragglers against batch size", question)


def scale_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Straggler % against world size (paper, Fig. 8c)."""
    question = "How does straggler time grow with the cluster, and does each partition's gain hold?"
    return _section(records, published, folder, "fig08c", "gpus", "Stragglers against cluster size", question)


def _section(
    records: Sequence[RunRecord],
    published: Sequence[PaperValue],
    folder: Path,
    experiment: str,
    knob: Knob,
    title: str,
    question: str,
) -> Section:
    runs = [run for run in runs_of(records, experiment) if run.config.mode == "simulated"]
    anchor = f"straggler_{knob}"
    if not runs:
        return not_run(anchor, title, question, f"repro run {experiment}")
    panels = sweep_panels(runs, knob, _METRIC)
    arms = tuple(dict.fromkeys(arm for _, panel in panels for arm in panel))
    rows = [
        (shared, f"{at:,}", *(f"{panel[arm][at].mean:.2f}" if at in panel.get(arm, {}) else "not run" for arm in arms))
        for shared, panel in panels
        for at in sorted({at for curve in panel.values() for at in curve})
    ]
    bounds = sorted((v for v in published if v.experiment == experiment), key=lambda v: v.value)
    paper = [f"the paper: {' and '.join(v.text() for v in bounds)} below {BASELINE} with {BALANCED}"] if bounds else []
    return Section(
        anchor=anchor,
        title=title,
        question=question,
        answer=sentence_of([*(_says(panel, knob) for panel in panels), *paper]),
        illustrations=(
            illustrate(
                along(runs, knob, _METRIC, "straggler wait, % of step"),
                folder,
                anchor,
                "Simulated; colour and marker say which partition. All train the same global batches. FBS gives every "
                "rank as many samples, so in small batches the rank with the longest history cannot be relieved; "
                "partitions by modelled cost choose which samples go with it, or how many. The paper's curves have no "
                "published numbers here.",
            ),
        ),
        table=Table(header=("Setting", KNOB_NAME[knob], *(f"{arm}, %" for arm in arms)), rows=tuple(rows), names=1),
        command=commands(runs),
    )


def _says(panel: Panel, knob: Knob) -> str:
    shared, curves = panel
    if BASELINE not in curves or BALANCED not in curves:
        return f"{shared}: no setting has both {BASELINE} and {BALANCED}"
    clauses = []
    common = sorted(set(curves[BASELINE]) & set(curves[BALANCED]))
    for at in dict.fromkeys((common[0], common[-1])):
        before, after = curves[BASELINE][at].mean, curves[BALANCED][at].mean
        least = min((arm for arm in curves if at in curves[arm]), key=lambda arm: curves[arm][at].mean)
        ratio = f"{before / after:.1f}× less" if after else "none left"
        clauses.append(
            f"{before:.1f} % with {BASELINE} and {after:.1f} % with {BALANCED} ({ratio}) at {at:,}, least with {least} "
            f"({curves[least][at].mean:.1f} %)"
        )
    return f"{shared}, by {KNOB_NAME[knob]}: {', '.join(clauses)}"
