"""Without these, the workload section could show a technique's numbers as the baseline's, join the paper's points to
the simulation, or fall over a report without its runs.

Not covered: whether the workload fits the paper (test_synthetic_presets.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from report_records import BALANCE, TORCHREC, config, write_run

from experiments.paper_values import PAPER_VALUES
from repro.errors import InputError
from repro.report.figures.workload import workload_against_uih, workload_curves
from repro.report.sections.workload import workload_section
from repro.tracking.record import RunRecord


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    runs = [
        config(arm=arm, experiment="fig02", gpus=gpus, max_uih=cap)
        for arm in (TORCHREC, BALANCE)
        for gpus in (8, 64)
        for cap in (1_000, 8_000, 21_000)
    ]
    return [write_run(tmp_path_factory.mktemp("results"), run) for run in runs]


def test_curves_are_the_baselines(records: list[RunRecord]) -> None:
    curves = workload_curves(records, "straggler_pct")
    assert sorted(curves) == [("synthetic", 8, 4), ("synthetic", 64, 4)]
    baseline = {(r.config.gpus, r.config.max_uih): r for r in records if r.config.arm.name == "torchrec"}
    for (_, gpus, _), curve in curves.items():
        assert list(curve) == [1_000, 8_000, 21_000]
        assert curve[8_000] == baseline[gpus, 8_000].metric("straggler_pct")


def test_no_line_joins_the_paper(records: list[RunRecord]) -> None:
    for axes in workload_against_uih(records, PAPER_VALUES).axes:
        for line in axes.get_lines():
            assert ("paper" in str(line.get_label())) == (line.get_linestyle() == "None")


def test_section_answers_and_tabulates(records: list[RunRecord], tmp_path: Path) -> None:
    section = workload_section(records, PAPER_VALUES, tmp_path)
    assert "64 GPUs x 4" in section.answer and "~ 22" in section.answer and "> 20" in section.answer
    assert section.table is not None and len(section.table.rows) == 6
    assert (tmp_path / "workload_uih.svg").exists()
    assert section.command == "repro run fig02"


def test_without_runs(records: list[RunRecord], tmp_path: Path) -> None:
    assert not workload_section([], PAPER_VALUES, tmp_path).was_run
    with pytest.raises(InputError, match="baseline runs"):
        workload_against_uih([record for record in records if record.config.arm.name == "balance"])
