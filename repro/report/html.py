"""Render `report.html`: one file, no request to anywhere, readable from file://."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jinja2

from repro.report.claims import CLAIM_MODES, Claim
from repro.report.definitions import DEFINITIONS, LEDGER_RULE
from repro.report.published import CONFIDENCE_MEANING
from repro.report.sections import Section
from repro.tracking.record import RunRecord

TEMPLATE = Path(__file__).with_name("report.html.j2")


class Assumption(Protocol):
    """A numbered assumption of the simulator."""

    @property
    def number(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def confidence(self) -> str: ...


def render(
    records: Sequence[RunRecord],
    sections: Sequence[Section],
    claims: Sequence[Claim],
    assumptions: Sequence[Assumption],
    fingerprint: str,
) -> str:
    """The whole page. A claim no run speaks to is folded away, unless its confidence is A."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    shown = [claim for claim in claims if claim.has_runs or claim.published.confidence == "A"]
    shown.sort(key=lambda claim: claim.published.confidence)
    return template.render(
        fingerprint=fingerprint,
        figures=[drawn.figure.name for section in sections for drawn in section.illustrations],
        confidence=CONFIDENCE_MEANING,
        claim_modes=CLAIM_MODES,
        shown_claims=shown,
        other_claims=[claim for claim in claims if claim not in shown],
        sections=sections,
        ledger_rule=LEDGER_RULE,
        definitions=DEFINITIONS,
        assumptions=assumptions,
        runs=records,
        **_provenance(records),
    )


def _provenance(records: Sequence[RunRecord]) -> dict[str, Any]:
    commits, versions, hardware, datasets, notes = (dict[str, None]() for _ in range(5))
    for record in records:
        origin = record.provenance
        commits[f"{origin.commit[:12]}{' with local changes' if origin.dirty else ''}"] = None
        versions.update(dict.fromkeys(f"{name} {version}" for name, version in sorted(origin.versions.items())))
        machine = ", ".join(f"{name}: {value}" for name, value in origin.hardware.items())
        hardware[f"{record.config.mode}: {machine}"] = None
        datasets[f"{record.config.dataset} (SHA-256 {origin.dataset_fingerprint[:12]}…)"] = None
        notes.update(dict.fromkeys(f"{record.config.mode}: {note}" for note in record.notes))
    return {
        "commits": list(commits),
        "versions": list(versions),
        "hardware": list(hardware),
        "datasets": list(datasets),
        "notes": list(notes),
    }
