"""The report's sections: a question, a one-sentence answer computed from the runs, a figure, a table, a command.

A section without its runs says which command makes them; it never fails and never fills in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.published import PaperValue
from repro.report.sections.autotune import autotune_section
from repro.report.sections.base import Illustration, Section, Table
from repro.report.sections.collision import collision_section
from repro.report.sections.collision_sweep import collision_sweep_section
from repro.report.sections.exposed import exposed_section
from repro.report.sections.grid import grid_section
from repro.report.sections.headline import headline_section
from repro.report.sections.ladder import ladder_section
from repro.report.sections.ledger import ledger_section
from repro.report.sections.partitions import batch_section, scale_section
from repro.report.sections.quality import quality_section
from repro.report.sections.straggler import straggler_section
from repro.report.sections.stragglers import stragglers_section
from repro.report.sections.throughput import throughput_section
from repro.report.sections.timeline import timeline_section
from repro.report.sections.workload import workload_section
from repro.tracking.record import RunRecord

__all__ = ["Illustration", "Section", "Table", "all_sections"]

_SECTIONS = (
    ladder_section,
    workload_section,
    straggler_section,
    stragglers_section,
    autotune_section,
    batch_section,
    scale_section,
    collision_section,
    exposed_section,
    collision_sweep_section,
    throughput_section,
    headline_section,
    grid_section,
    ledger_section,
    timeline_section,
    quality_section,
)


def all_sections(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> list[Section]:
    """All sections in order, their figures saved into `folder`; the first one is the ladder.

    Raises:
        InputError: a run lacks a metric a section needs.
    """
    return [section(records, published, folder) for section in _SECTIONS]
