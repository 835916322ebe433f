"""Exposed embedding communication between real ranks, against the collision rate of their data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Group, Setting, by_setting, spread
from repro.report.figures import collision_sweep_figure
from repro.report.figures.collision_sweep import RATE, curves
from repro.report.figures.exposed import METRIC, PRIORITY, line_fit
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, modes_of, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord

_TYPICAL = 10
"""Per cent of rows that collide, near the middle of the published range."""
_SDD = "sdd"
ALL = "exposed_comm_ms"
"""With the dense AllReduce, which the ledger names first where it is in flight beside collision rows."""
_COLUMNS = {
    METRIC: "Exposed embedding, ms",
    "exposed_exclusive_ms": "of it exclusive, ms",
    ALL: "Exposed in all, ms",
    "step_ms": "Step, ms",
    "collision_pct": "Collisions, % of rows",
    RATE: "% of exchanged rows",
    "dedup_saving_pct": "Lookups saved by dedup, %",
}


def collision_sweep_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Exposed embedding communication against the rate (paper, Fig. 9), measured on real ranks."""
    del published  # milliseconds of an emulated accelerator are none of the paper's
    title = "Exposed embedding communication against the collision rate"
    question = "Does exposed embedding communication follow the collision rate between real ranks?"
    runs = runs_of(records, "collision_sweep")
    if not runs:
        return not_run("collision-sweep", title, question, "repro run collision_sweep")
    return Section(
        anchor="collision-sweep",
        title=title,
        question=question,
        answer=sentence_of(_clauses(runs)),
        illustrations=(
            illustrate(
                collision_sweep_figure(runs),
                folder,
                "collision_sweep",
                f"{modes_of(runs)}: real ranks, ids and exchanges on links of the rate that the runs' notes give; "
                "dense compute lasts as long as the cost model says. A data set a rate, alike in all else. The rate is "
                "the one counted by the prioritized run; TorchRec's arms, which count nothing, train the same batches. "
                "TorchRec sends a row for every lookup, the prioritized exchange sends distinct rows (last column): "
                "so much of the distance is deduplication's, not priority's. Where collision rows and the dense "
                "AllReduce are in flight together, the ledger names the AllReduce; `in all` has both.",
            ),
        ),
        table=Table(header=("Setting", "Arm", *_COLUMNS.values()), rows=_rows(runs)),
        command=commands(runs),
    )


def _rows(runs: Sequence[RunRecord]) -> tuple[tuple[str, ...], ...]:
    """By rate; settings in which nobody counted come last."""

    def rate(setting_and_group: tuple[Setting, Group]) -> float:
        group = setting_and_group[1]
        return spread(group[PRIORITY], RATE).mean if PRIORITY in group else math.inf

    rows = []
    for setting, group in sorted(by_setting(runs).items(), key=rate):
        for arm, of_arm in group.items():
            known = of_arm[0].metrics
            cells = (f"{spread(of_arm, name).mean:.2f}" if name in known else "none" for name in _COLUMNS)
            rows.append((setting.text(), arm, *cells))
    return tuple(rows)


def _clauses(runs: Sequence[RunRecord]) -> list[str]:
    of_arm = curves(runs)
    if not {BASELINE, PRIORITY} <= of_arm.keys():
        return ["no setting has both of the arms that this section compares"]
    priority, baseline = of_arm[PRIORITY], of_arm[BASELINE]
    rate = min(priority.keys() & baseline.keys(), key=lambda at: abs(at - _TYPICAL))
    before, after = baseline[rate], priority[rate]
    saved = next(run.metric("dedup_saving_pct") for run in runs if run.metrics.keys() >= {RATE, "dedup_saving_pct"})
    found = [
        f"{runs[0].config.mode}, where {rate:.1f} % of the exchanged rows collide: {before:.1f} ms with {BASELINE}, "
        f"{after:.1f} ms with {PRIORITY} ({100 * (1 - after / before):.0f} % less; {saved:.0f} % of the lookups need "
        "no row of their own, which is deduplication's part)"
    ]
    if _SDD in of_arm and rate in of_arm[_SDD]:
        found[0] += f", {of_arm[_SDD][rate]:.1f} ms with {_SDD}"
    everything = curves(runs, ALL)
    all_before, all_after = everything[BASELINE][rate], everything[PRIORITY][rate]
    found.append(
        f"all exposed communication there, with the dense AllReduce: {all_before:.1f} ms with {BASELINE}, "
        f"{all_after:.1f} ms with {PRIORITY} ({100 * (1 - all_after / all_before):.0f} % less)"
    )
    if len(priority) > 2:
        start, slope, r2 = line_fit(priority)
        _, all_slope, all_r2 = line_fit(everything[PRIORITY])
        values = list(baseline.values())
        found.append(
            f"over {min(priority):.1f}-{max(priority):.1f} % the line of {PRIORITY} is {start:.1f} ms + {slope:.2f} ms "
            f"a per cent (R² {r2:.3f}; of all communication {all_slope:.2f} ms a per cent, R² {all_r2:.3f}), "
            f"while {BASELINE} stays between {min(values):.1f} and {max(values):.1f} ms"
        )
    return found
