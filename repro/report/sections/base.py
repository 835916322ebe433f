"""What a section is, and what all sections share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from repro.report.comparison import BASELINE, Group, Setting, by_setting
from repro.report.published import PaperValue
from repro.report.style import SavedFigure, save_figure
from repro.tracking.record import RunRecord

BALANCED = "balance"
FULL = "freescale"
_RING_NOTE = (
    " freescale sends the rows that a step waits for over the host-staged ring, too. By itself that is slower than "
    "NCCL, most of all inside a node, where it leaves NVLink unused; section The headline has the arm that does not."
)


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A figure and its caption, which states the mode."""

    figure: SavedFigure
    caption: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Header and text cells; the first columns name the row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 2
    """How many columns name the row; the others are numbers."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of the report."""

    anchor: str
    title: str
    question: str
    answer: str
    illustrations: tuple[Illustration, ...]
    table: Table | None
    command: str
    """Makes the section's numbers again; when nothing was run, makes them at all."""

    @property
    def was_run(self) -> bool:
        """Whether the section has anything to show."""
        return bool(self.illustrations)


def paper_text(published: Sequence[PaperValue], experiment: str, metric: str) -> str:
    """The published values of a metric, with arms and confidence marks; empty where there is none."""
    values = (value for value in published if value.experiment == experiment and value.metric == metric)
    return ", ".join(f"{value.text()} with {value.arm} ({value.confidence})" for value in values)


def ring_note(runs: Sequence[RunRecord]) -> str:
    """What a caption of simulated runs adds if `FULL` is among them; else nothing."""
    return _RING_NOTE if any(run.config.arm.name == FULL for run in runs) else ""


def runs_of(records: Sequence[RunRecord], experiment: str) -> list[RunRecord]:
    """The runs of one experiment."""
    return [record for record in records if record.config.experiment == experiment]


def not_run(anchor: str, title: str, question: str, command: str) -> Section:
    """A section that only says how to make it."""
    return Section(
        anchor=anchor, title=title, question=question, answer="Not run.", illustrations=(), table=None, command=command
    )


def illustrate(figure: Figure, folder: Path, name: str, caption: str) -> Illustration:
    """Save a figure and caption it."""
    return Illustration(figure=save_figure(figure, folder, name), caption=caption)


def commands(runs: Sequence[RunRecord]) -> str:
    """The commands that made these runs."""
    return "; ".join(dict.fromkeys(run.provenance.command for run in runs))


def modes_of(runs: Sequence[RunRecord]) -> str:
    """The modes of these runs, to begin a caption with."""
    return " and ".join(dict.fromkeys(setting.mode for setting in by_setting(runs))).capitalize()


def answer_by_mode(groups: dict[Setting, Group], sentence: Callable[[Setting, Group], str | None]) -> str:
    """One clause a mode, from its largest setting that has one."""
    by_mode: dict[str, str] = {}
    for setting, group in sorted(groups.items(), key=lambda item: (item[0].gpus, item[0].max_uih)):
        clause = sentence(setting, group)
        if clause:
            by_mode[setting.mode] = clause
    if not by_mode:
        return f"No setting has both {BASELINE} and {BALANCED}, so there is nothing to compare."
    return sentence_of([by_mode[mode] for mode in sorted(by_mode, reverse=True)])


def sentence_of(clauses: Sequence[str]) -> str:
    """Clauses as one sentence."""
    text = "; ".join(clauses).replace(" %", "\u00a0%")
    return f"{text[:1].upper()}{text[1:]}."
