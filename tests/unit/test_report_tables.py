"""Without these tests a renamed field would break every script that reads `summary.json`, and a published bound or a
value of another setting could stand beside a run as if it were its target.

Not covered: whether the published values themselves are right; they can only be read against the paper.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from report_records import BALANCE, config, write_run, write_small_results

from experiments.paper_values import PAPER_VALUES
from repro.errors import InputError
from repro.report.comparison import by_setting, latest_runs, ratio_to_baseline
from repro.report.published import PaperValue
from repro.report.tables import FIELDS, summary_rows, write_summary
from repro.tracking.record import RunRecord, read_records, write_record

STABLE_FIELDS = (
    "experiment figure arm mode dataset cluster gpus max_uih batch seed "
    "metric value unit paper_value confidence verdict"
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return write_small_results(tmp_path_factory.mktemp("results"))


def test_fields_and_metric_names_are_stable(records: list[RunRecord]) -> None:
    assert " ".join(FIELDS) == STABLE_FIELDS
    rows = summary_rows(records, PAPER_VALUES)
    assert all(tuple(row) == FIELDS for row in rows)
    measured = {row["metric"] for row in rows if row["mode"] == "measured"}
    assert measured == {
        *("straggler_pct", "exposed_comm_ms", "exposed_embedding_ms", "exposed_exclusive_ms"),
        *("exposed_balance_pct", "bubble_pct", "contention_pct"),
        *("imbalance", "step_ms", "qps", "sparsity_pct", "ne"),
    }


def test_one_row_a_run_and_metric_and_one_a_published_value(records: list[RunRecord]) -> None:
    rows = summary_rows(records, PAPER_VALUES)
    runs = [row for row in rows if row["mode"] != "paper"]
    assert len(runs) == sum(len(record.metrics) for record in records)
    keys = Counter(tuple(row[name] for name in FIELDS[:11] if name != "figure") for row in runs)
    assert set(keys.values()) == {1}
    assert len(rows) - len(runs) == len(PAPER_VALUES)
    assert all(row["verdict"] is None for row in rows)


def test_published_estimate_meets_only_its_own_setting(tmp_path: Path) -> None:
    same = write_run(tmp_path, replace(config(arm=BALANCE, gpus=64, max_uih=21504), batch=128, steps=3))
    smaller = write_run(tmp_path, replace(config(arm=BALANCE, gpus=8, max_uih=21000), batch=128, steps=3))
    rows = summary_rows([same, smaller], PAPER_VALUES)
    found = {
        (row["gpus"], row["metric"]): (row["paper_value"], row["confidence"]) for row in rows if row["mode"] != "paper"
    }
    assert found[(64, "straggler_pct")] == (2.4, "B")
    assert found[(64, "bubble_pct")] == (None, None)
    assert found[(8, "straggler_pct")] == (None, None)


def test_bound_never_passes_for_an_estimate(tmp_path: Path) -> None:
    record = write_run(tmp_path, config(gpus=8, max_uih=8000))
    rows = summary_rows([record], PAPER_VALUES)
    assert all(row["paper_value"] is None for row in rows if row["mode"] == "simulated")
    bounds = [
        row for row in rows if row["mode"] == "paper" and row["value"] == 20.0 and row["metric"] == "straggler_pct"
    ]
    assert [row["unit"] for row in bounds] == ["% (lower bound)"]


def test_files_hold_the_same_rows(records: list[RunRecord], tmp_path: Path) -> None:
    rows = summary_rows(records, PAPER_VALUES)
    json_path, csv_path = write_summary(rows, tmp_path)
    assert json.loads(json_path.read_text()) == rows
    with csv_path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows)
    assert float(read[0]["value"]) == rows[0]["value"]
    assert read[0]["verdict"] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.csv", "summary.json"]


def test_ratio_is_to_the_baseline_of_the_same_setting(records: list[RunRecord]) -> None:
    for group in by_setting([record for record in records if record.config.experiment == "ladder"]).values():
        ratio = ratio_to_baseline(group, "balance", "qps")
        assert ratio is not None
        assert ratio.mean == group["balance"][0].metric("qps") / group["torchrec"][0].metric("qps")
    assert ratio_to_baseline({"balance": [records[1]]}, "balance", "qps") is None
    with pytest.raises(InputError, match="no metric"):
        ratio_to_baseline(group, "balance", "no_such_metric")


def test_seeds_are_a_spread_and_reruns_replace(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path, config(seed=seed)) for seed in (0, 1))
    ((group),) = by_setting([first, second]).values()
    assert len(group["torchrec"]) == 2
    newer = replace(first, run_id="again", provenance=replace(first.provenance, started="2026-02-01T00:00:00+00:00"))
    folder = first.folder.with_name("again")
    folder.mkdir()
    write_record(newer, folder)
    kept = [record.run_id for record in latest_runs(read_records(tmp_path))]
    assert kept == ["again", second.run_id]


def test_published_values_are_marked_and_consistent() -> None:
    assert len(PAPER_VALUES) == len(set(PAPER_VALUES))
    headline = [value for value in PAPER_VALUES if value.experiment == "headline"]
    assert [(value.value, value.gpus, value.confidence) for value in headline] == [(-90.3, 256, "A")]
    assert {value.experiment: value.confidence for value in PAPER_VALUES if value.confidence == "C"} == {
        "fig03": "C",
        "fig07": "C",
    }
    with pytest.raises(InputError, match="confidence 'Z'"):
        replace(headline[0], confidence="Z")  # type: ignore[arg-type]


def test_value_reads_as_people_write_it() -> None:
    texts = {value.text() for value in PAPER_VALUES}
    assert {"-90.3 %", "~ 2.4 %", "> 20 %", "> 9×", "~ 111 ms"} <= texts
    assert isinstance(PAPER_VALUES[0], PaperValue)
