"""Quality: whether techniques change what the model learns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, by_setting, spread
from repro.report.figures import ne_curves
from repro.report.figures.quality import ne_differences
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord


def quality_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """NE of the arms."""
    title, question = "Quality", "Does any technique change what the model learns?"
    runs = [run for run in runs_of(records, "ladder") if run.config.mode == "measured"]
    if not runs:
        return not_run("quality", title, question, "repro run ladder")
    rows = tuple(
        (setting.text(), arm, f"{spread(group[arm], 'ne').mean:.6f}")
        for setting, group in by_setting(runs).items()
        for arm in group
    )
    gaps = [
        f"{setting.text()}: NE of {arm} and {BASELINE} differ by at most {gap:.2g} at any step"
        for (setting, arm), gap in ne_differences(runs).items()
    ]
    return Section(
        anchor="quality",
        title=title,
        question=question,
        answer=sentence_of(gaps) if gaps else f"Only one arm was run, so there is nothing to compare with {BASELINE}.",
        illustrations=(
            illustrate(
                ne_curves(runs),
                folder,
                "ne",
                "Measured. Progressive NE: each global batch is scored before it is trained on. The paper publishes "
                "that its curves coincide, and no numbers.",
            ),
        ),
        table=Table(header=("Setting", "Arm", "NE, last quarter of steps"), rows=rows),
        command=commands(runs),
    )
