"""Build everything people look at from run records: summary tables, figures, `report.html`."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from repro.config import fingerprint
from repro.report.claims import claims
from repro.report.comparison import latest_runs
from repro.report.html import Assumption, render
from repro.report.published import PaperValue
from repro.report.sections import all_sections
from repro.report.tables import summary_rows, write_summary
from repro.tracking.record import RECORD, STEPS, RunRecord, read_records, write_atomically

REPORT = "report.html"
FIGURES = "figures"
_HEAD_BYTES = 4096


def build_report(
    results: Path,
    paper_values: Sequence[PaperValue],
    assumptions: Sequence[Assumption],
    log: Callable[[str], None] = print,
) -> Path:
    """Write `summary.json`, `summary.csv`, `figures/` and `report.html` into `results`; the report's path.

    Nothing is done when the inputs (records, published values, assumptions, the report's own source) are those of
    the report that is there.

    Raises:
        InputError: no runs, an unreadable record, or a record without a metric that a table needs.
    """
    everything = read_records(results)
    records = latest_runs(everything)
    report = results / REPORT
    inputs = _inputs_fingerprint(records, paper_values, assumptions)
    if _is_current(results, inputs):
        log(f"{report}: up to date, skipped")
        return report
    if len(records) < len(everything):
        log(f"{len(everything) - len(records)} older runs of the same settings are left out")
    sections = all_sections(records, paper_values, results / FIGURES)
    write_summary(summary_rows(records, paper_values), results)
    page = render(records, sections, claims(records, paper_values), assumptions, inputs)
    write_atomically(report, page)
    missing = [f"{section.title} (`{section.command}`)" for section in sections if not section.was_run]
    log(f"{report}: {len(records)} runs" + (f"; not run: {', '.join(missing)}" if missing else ""))
    return report


def records_fingerprint(records: Sequence[RunRecord]) -> str:
    """SHA-256 (hex) over what figures read: records and per-step rows (spans are made with them)."""
    digest = hashlib.sha256()
    for record in records:
        for name in (RECORD, STEPS):
            digest.update(hashlib.sha256((record.folder / name).read_bytes()).digest())
    return digest.hexdigest()


def source_fingerprint() -> str:
    """SHA-256 (hex) over the report's own source, template included."""
    folder = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.j2")]):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _inputs_fingerprint(
    records: Sequence[RunRecord], paper_values: Sequence[PaperValue], assumptions: Sequence[Assumption]
) -> str:
    return fingerprint(
        [
            records_fingerprint(records),
            source_fingerprint(),
            [dataclasses.asdict(value) for value in paper_values],
            [[a.number, a.statement, a.source, a.confidence] for a in assumptions],
        ]
    )


def _is_current(results: Path, inputs: str) -> bool:
    try:
        head = (results / REPORT).read_text(encoding="utf-8")[:_HEAD_BYTES]
    except OSError:
        return False
    figures = re.search(r'<meta name="figures" content="([^"]*)">', head)
    if f'<meta name="inputs" content="{inputs}">' not in head or figures is None:
        return False
    drawn = [f"{FIGURES}/{name}{kind}" for name in figures[1].split() for kind in (".svg", ".png")]
    return all((results / name).exists() for name in (*drawn, "summary.json", "summary.csv"))
