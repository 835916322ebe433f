"""Figures as functions of run records; each returns a matplotlib figure and says what it lacks."""

from __future__ import annotations

from pathlib import Path

from repro.report.figures.ablation import ablation_bars
from repro.report.figures.collision import collision_figure
from repro.report.figures.collision_sweep import collision_sweep_figure
from repro.report.figures.exposed import exposed_figure
from repro.report.figures.headline import headline_figure, steps_figure
from repro.report.figures.ledger import ledger_bars
from repro.report.figures.quality import ne_curves
from repro.report.figures.straggler import straggler_against_uih
from repro.report.figures.sweep import along
from repro.report.figures.timeline import step_timeline, typical_step
from repro.report.style import save_figure
from repro.tracking.record import RunRecord

__all__ = [
    "ablation_bars",
    "along",
    "collision_figure",
    "collision_sweep_figure",
    "exposed_figure",
    "headline_figure",
    "ledger_bars",
    "ne_curves",
    "run_images",
    "step_timeline",
    "steps_figure",
    "straggler_against_uih",
    "typical_step",
]


def run_images(record: RunRecord, folder: Path) -> dict[str, Path]:
    """Figures of a single run, for trackers: name -> PNG under `folder`.

    Raises:
        InputError: the run's rows or timeline lack what a figure needs.
    """
    figures = {"ledger": ledger_bars([record]), "timeline": step_timeline([record], typical_step(record))}
    return {name: save_figure(figure, folder, name).png for name, figure in figures.items()}
