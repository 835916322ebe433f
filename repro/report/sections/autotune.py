"""A slow device, and AutoTune giving it less work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from repro.report.comparison import Group, by_setting, spread
from repro.report.figures.autotune import KEY, autotune_figure
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, modes_of, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord

_UNTUNED, _TUNED = "balance_vbs_cost", "balance_vbs_cost_tuned"
_COLUMNS = {"straggler_pct": "Straggler, %", "imbalance": "Busiest / mean rank", "step_ms": "Step, ms"}


def autotune_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """What AutoTune does about one slow rank."""
    del published  # the paper has no number of it
    title, question = "AutoTune", "Does a slow device get less work, so that the others stop waiting for it?"
    runs = runs_of(records, "autotune")
    if not runs:
        return not_run("autotune", title, question, "repro run autotune")
    groups = by_setting(runs)
    return Section(
        anchor="autotune",
        title=title,
        question=question,
        answer=sentence_of([f"{setting.text()}: {_says(group)}" for setting, group in groups.items()]),
        illustrations=(
            illustrate(
                autotune_figure(runs),
                folder,
                "autotune",
                f"{modes_of(runs)}; which rank is slow, and how slow, is in the runs' notes. All arms were trained "
                f"side by side on the same global batches. {_TUNED} starts from equal shares and corrects them from "
                "what each rank measured; spikes are steps in which a rank was late for its pace.",
            ),
        ),
        table=Table(
            header=("Setting", "Arm", *_COLUMNS.values()),
            rows=tuple(
                (setting.text(), arm, *(f"{spread(of_arm, name).mean:.2f}" for name in _COLUMNS))
                for setting, group in groups.items()
                for arm, of_arm in group.items()
            ),
        ),
        command=commands(runs),
    )


def _says(group: Group) -> str:
    if not {_UNTUNED, _TUNED} <= group.keys():
        return f"no setting has both {_UNTUNED} and {_TUNED}"
    timed = [row for row in group[_TUNED][0].steps() if not row["warmup"]]
    step = {arm: spread(group[arm], "step_ms").mean for arm in (_UNTUNED, _TUNED)}
    return (
        f"after warm-up the others wait {spread(group[_UNTUNED], 'straggler_pct').mean:.1f} % of the step with equal "
        f"shares ({_UNTUNED}) and {spread(group[_TUNED], 'straggler_pct').mean:.1f} % with shares that follow the "
        f"measured times ({_TUNED}; {median(row[KEY] for row in timed):.1f} % in the median step), and a step takes "
        f"{100 * (1 - step[_TUNED] / step[_UNTUNED]):.0f} % less time"
    )
