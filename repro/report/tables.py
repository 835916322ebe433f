"""The summary table: one row a (run, metric) and one a published value, under stable names.

Field names and metric names are what people script against; they change only with a new major version.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro.report.published import PaperValue
from repro.tracking.record import RunRecord, write_atomically

FIELDS = (
    "experiment",
    "figure",
    "arm",
    "mode",
    "dataset",
    "cluster",
    "gpus",
    "max_uih",
    "batch",
    "seed",
    "metric",
    "value",
    "unit",
    "paper_value",
    "confidence",
    "verdict",
)
UIH_TOLERANCE = 0.05
"""A cap within 5 % of a published one is the same setting: `21K` may mean 21,000 or 21,504."""

Row = dict[str, Any]


def summary_rows(records: Sequence[RunRecord], published: Sequence[PaperValue] = ()) -> list[Row]:
    """Rows of all runs, then of all published values. `paper_value` and `confidence` of a run's row are filled where
    an estimate (not a bound) is published for its metric, arm and setting."""
    rows = [
        _row(
            experiment=record.config.experiment,
            figure=record.config.figure or None,
            arm=record.config.arm.name,
            mode=record.config.mode,
            dataset=record.config.dataset,
            cluster=record.config.cluster,
            gpus=record.config.gpus,
            max_uih=record.config.max_uih,
            batch=record.config.batch,
            seed=record.config.seed,
            metric=name,
            value=metric.value,
            unit=metric.unit,
            **_published_fields(record, name, published),
        )
        for record in records
        for name, metric in sorted(record.metrics.items())
    ]
    return rows + [_paper_row(value) for value in published]


def matching_value(record: RunRecord, metric: str, published: Sequence[PaperValue]) -> PaperValue | None:
    """The published estimate for this run's metric, arm and setting; the most specific one of several."""
    config = record.config
    fitting = [
        value
        for value in published
        if (value.metric, value.arm) == (metric, config.arm.name)
        and not value.is_bound
        and value.gpus in (None, config.gpus)
        and value.batch in (None, config.batch)
        and (value.max_uih is None or abs(config.max_uih / value.max_uih - 1) <= UIH_TOLERANCE)
    ]
    return max(fitting, key=lambda value: _specificity(value, config.experiment), default=None)


def _specificity(value: PaperValue, experiment: str) -> tuple[bool, int]:
    stated = sum(field is not None for field in (value.gpus, value.batch, value.max_uih))
    return value.experiment == experiment, stated


def _published_fields(record: RunRecord, metric: str, published: Sequence[PaperValue]) -> Row:
    value = matching_value(record, metric, published)
    return {} if value is None else {"paper_value": value.value, "confidence": value.confidence}


def _paper_row(value: PaperValue) -> Row:
    # The row has no field for the relation, and a bound must not pass for an estimate.
    bound = {">": " (lower bound)", "<": " (upper bound)"}.get(value.relation, "")
    return _row(
        experiment=value.experiment,
        figure=value.figure,
        arm=value.arm,
        mode="paper",
        gpus=value.gpus,
        max_uih=value.max_uih,
        batch=value.batch,
        metric=value.metric,
        value=value.value,
        unit=value.unit + bound,
        paper_value=value.value,
        confidence=value.confidence,
    )


def _row(**fields: Any) -> Row:
    return {name: fields.get(name) for name in FIELDS}


def write_summary(rows: Sequence[Row], results: Path) -> tuple[Path, Path]:
    """Write `summary.json` and `summary.csv` (absent fields null, in CSV empty), each atomically."""
    json_path, csv_path = results / "summary.json", results / "summary.csv"
    write_atomically(json_path, json.dumps(list(rows), indent=1, allow_nan=False) + "\n")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(csv_path, text.getvalue())
    return json_path, csv_path
