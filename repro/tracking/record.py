"""The run record: one folder a run, complete or absent.

    results/runs/<experiment>/<run id>/
        record.json      config, provenance, metrics (written last; its presence means the run is complete)
        steps.jsonl      one row a step: ledger parts and quality metrics
        spans.parquet    the timeline
        logs/            per-rank output (measured runs)

Tables, figures and notebooks are functions of run records. A missing metric is an error, never 0.0.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.config import RunConfig, from_dict
from repro.errors import InputError
from repro.timeline.schema import Metric, Timeline

RECORD = "record.json"
STEPS = "steps.jsonl"
SPANS = "spans.parquet"
RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What made the numbers, so that they can be made again."""

    fingerprint: str
    """Over config, data set, code and package versions: what decides whether a run is done already."""
    dataset_fingerprint: str
    commit: str
    """Git commit, or `unknown` outside a checkout."""
    dirty: bool
    versions: dict[str, str]
    hardware: dict[str, str]
    command: str
    """One command that makes this number again."""
    started: str
    """ISO 8601, UTC."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A finished run."""

    run_id: str
    config: RunConfig
    provenance: Provenance
    metrics: dict[str, Metric]
    notes: tuple[str, ...] = ()
    """What a reader must know (fallbacks taken, assumptions)."""
    tracking: dict[str, str] = field(default_factory=dict)
    """Sink name -> what became of it (W&B run path or the error)."""
    version: int = RECORD_VERSION
    folder: Path = field(default=Path(), compare=False)
    """Where it lies; set on reading, not stored."""

    def metric(self, name: str) -> float:
        """Value of a metric.

        Raises:
            InputError: the run has no such metric.
        """
        if name not in self.metrics:
            raise InputError(f"{self.folder / RECORD}: no metric {name!r}; it has {', '.join(sorted(self.metrics))}")
        return self.metrics[name].value

    def timeline(self) -> Timeline:
        """The run's spans."""
        return Timeline.read(self.folder / SPANS)

    def steps(self) -> list[dict[str, Any]]:
        """The per-step rows of `steps.jsonl`."""
        lines = (self.folder / STEPS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]


def write_record(record: RunRecord, folder: Path) -> None:
    """Write `record.json` into `folder` atomically."""
    raw = dataclasses.asdict(record)
    del raw["folder"]
    write_atomically(folder / RECORD, json.dumps(raw, indent=2) + "\n")


def read_record(folder: Path) -> RunRecord:
    """Read the record in `folder`.

    Raises:
        InputError: absent, unreadable, or of another version.
    """
    path = folder / RECORD
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["version"] != RECORD_VERSION:
            raise InputError(
                f"{path}: record version {raw['version']}, this release reads {RECORD_VERSION}; run it again"
            )
        raw["config"] = from_dict(raw["config"])
        raw["provenance"] = Provenance(**raw["provenance"])
        raw["metrics"] = {name: Metric(**metric) for name, metric in raw["metrics"].items()}
        raw["notes"] = tuple(raw["notes"])
        return RunRecord(**raw, folder=folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a readable run record ({error}); remove the folder and run it again") from None


def read_records(results: Path) -> list[RunRecord]:
    """All complete records under `results/runs`, sorted by (experiment, run id).

    Raises:
        InputError: there is none.
    """
    records = [read_record(folder) for folder in _complete(results)]
    if not records:
        raise InputError(f"{results}: no run records; make some with `repro run ladder`")
    return records


def _complete(results: Path) -> Iterator[Path]:
    for path in sorted(results.glob(f"runs/*/*/{RECORD}")):
        if not path.parent.name.startswith("."):
            yield path.parent


def write_atomically(path: Path, text: str) -> None:
    """Write under a temporary name beside `path`, then rename."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
