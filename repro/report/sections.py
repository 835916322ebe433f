"""The report's sections: a question, a one-sentence answer computed from the runs, a figure, a table, a command.

A section without its runs says which command makes them; it never fails and never fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from repro.report.comparison import BASELINE, Group, Setting, by_setting, events, ratio_to_baseline, spread
from repro.report.figures import (
    ablation_bars,
    ledger_bars,
    ne_curves,
    step_timeline,
    straggler_against_uih,
    typical_step,
)
from repro.report.figures.ledger import KINDS, kind_shares, ledger_shares
from repro.report.figures.quality import ne_differences
from repro.report.figures.straggler import straggler_curves
from repro.report.figures.timeline import MAX_RANKS, step_segments
from repro.report.published import PaperValue
from repro.report.style import SavedFigure, save_figure
from repro.timeline.ledger import PARTS
from repro.tracking.record import RunRecord

BALANCED = "balance"


@dataclass(frozen=True, kw_only=True)
class Illustration:
    """A figure and its caption, which states the mode."""

    figure: SavedFigure
    caption: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Header and text cells; the first column names the row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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


def all_sections(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> list[Section]:
    """All sections in order, their figures saved into `folder`; the first one is the ladder.

    Raises:
        InputError: a run lacks a metric a section needs.
    """
    return [section(records, published, folder) for section in _SECTIONS]


def ladder_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """What each rung of the ladder gains."""
    question = "What does each technique gain on top of the one before?"
    runs = _of(records, "ladder")
    if not runs:
        return _not_run("ladder", "The ablation ladder", question, "repro run ladder")
    shown = [value for value in published if value.experiment == "fig08a"]
    groups = by_setting(runs)
    rows = []
    for setting, group in groups.items():
        for arm in group:
            rows.append((setting.text(), arm, *_ladder_cells(group, arm)))
    header = (
        "Setting",
        "Arm",
        "Straggler, %",
        "Bubble, %",
        "Exposed comm., ms",
        "Step, ms",
        "Requests/s",
        "× baseline",
    )
    caption = (
        f"{_modes(runs)}; outlined bars are the paper's own values (confidence mark in brackets). Every ratio is to "
        f"{BASELINE} of the same mode, data set and world size. Milliseconds compare within one setting only."
    )
    return Section(
        anchor="ladder",
        title="The ablation ladder",
        question=question,
        answer=_each_mode(groups, _ladder_sentence),
        illustrations=(_illustrate(ablation_bars(runs, shown), folder, "ladder", caption),),
        table=Table(header=header, rows=tuple(rows)),
        command=_command(runs),
    )


def _ladder_cells(group: Group, arm: str) -> tuple[str, ...]:
    runs = group[arm]
    ratio = ratio_to_baseline(group, arm, "qps")
    return (
        *(f"{spread(runs, name).mean:.2f}" for name in ("straggler_pct", "bubble_pct", "exposed_comm_ms", "step_ms")),
        f"{spread(runs, 'qps').mean:,.0f}",
        f"{ratio.mean:.3f}" if ratio else "no baseline",
    )


def _ladder_sentence(setting: Setting, group: Group) -> str | None:
    speed = ratio_to_baseline(group, BALANCED, "qps") if BALANCED in group else None
    if speed is None:
        return None
    before, after = (spread(group[arm], "straggler_pct").mean for arm in (BASELINE, BALANCED))
    return (
        f"{setting.text()}: {BALANCED} changes straggler wait from {before:.1f} % to {after:.1f} % of the step and "
        f"requests/s by {100 * (speed.mean - 1):+.1f} %"
    )


def straggler_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Straggler % against max UIH."""
    title, question = "Stragglers against UIH length", "How does straggler time grow with the longest history?"
    runs = [run for run in _of(records, "fig08a") if run.config.mode == "simulated"]
    if not runs:
        return _not_run("straggler", title, question, "repro run fig08a")
    curves = straggler_curves(runs)
    rows, sentences = [], []
    for (mode, dataset, gpus), panel in curves.items():
        caps = sorted({cap for curve in panel.values() for cap in curve})
        for cap in caps:
            cells = (f"{curve[cap].mean:.2f}" if cap in curve else "not run" for curve in panel.values())
            rows.append((f"{mode}, {gpus} GPUs, {dataset}", f"{cap:,}", *cells))
        ends = ", ".join(
            f"{curve[caps[-1]].mean:.1f} % with {arm}" for arm, curve in panel.items() if caps[-1] in curve
        )
        sentences.append(f"{mode}, {gpus} GPUs, {dataset}: at max UIH {events(caps[-1])} it is {ends}")
    near = [value for value in published if value.experiment == "fig08a" and value.metric == "straggler_pct"]
    paper = ", ".join(f"{value.text()} with {value.arm} ({value.confidence})" for value in near)
    arms = tuple(dict.fromkeys(arm for panel in curves.values() for arm in panel))
    return Section(
        anchor="straggler",
        title=title,
        question=question,
        answer="; ".join(sentences) + (f"; the paper: {paper}." if paper else "."),
        illustrations=(
            _illustrate(
                straggler_against_uih(runs, published),
                folder,
                "straggler_uih",
                "Simulated (dots, joined per arm). Stars are the paper's points, triangles its bounds, each with its "
                "confidence mark; no line joins them to the simulation.",
            ),
        ),
        table=Table(header=("Setting", "Max UIH", *(f"{arm}, %" for arm in arms)), rows=tuple(rows)),
        command=_command(runs),
    )


def ledger_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Where a step's time goes."""
    title, question = "Bubble ledger", "Where does the time of a step go?"
    runs = _of(records, "ladder")
    if not runs:
        return _not_run("ledger", title, question, "repro run ladder")
    groups = by_setting(runs)
    first = {(setting, arm): group[arm][0] for setting, group in groups.items() for arm in group}
    shares = {key: ledger_shares(run) for key, run in first.items()}
    used = [part for part in PARTS if any(share[part] > 0 for share in shares.values())]
    rows = tuple(
        (f"{setting.text()}", arm, *(f"{share[part]:.2f}" for part in used)) for (setting, arm), share in shares.items()
    )
    return Section(
        anchor="ledger",
        title=title,
        question=question,
        answer=_each_mode(groups, _ledger_sentence),
        illustrations=(
            _illustrate(
                ledger_bars(runs),
                folder,
                "ledger",
                f"{_modes(runs)}. Parts of a bar sum to 100 % of the step; warm-up steps are left out.",
            ),
        ),
        table=Table(
            header=("Setting (% of step)", "Arm", *(part.replace("_", " ") for part in used)),
            rows=rows,
        ),
        command=_command(runs),
    )


def _ledger_sentence(setting: Setting, group: Group) -> str | None:
    texts = []
    for arm in (BASELINE, BALANCED):
        if arm not in group:
            return None
        shares = kind_shares(group[arm][0])
        lost = max((kind for kind in KINDS if kind != "useful compute"), key=lambda kind: shares[kind])
        texts.append(
            f"{arm} computes {shares['useful compute']:.1f} % of the step and loses most to {lost} "
            f"({shares[lost]:.1f} %)"
        )
    return f"{setting.text()}: {'; '.join(texts)}"


def timeline_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """One step, rank by rank, before and after balancing."""
    title, question = "One step, rank by rank", "Who waits for whom, before and after balancing?"
    runs = _of(records, "ladder")
    pairs = _pairs(runs)
    if not pairs:
        return _not_run("timeline", title, question, "repro run ladder")
    illustrations, rows, sentences = [], [], []
    for setting, pair in pairs.items():
        step = typical_step(pair[0])
        caption = (
            f"{setting.text()}. Step {step}: the {BASELINE} step of median straggler share, and the same batch after."
        )
        name = f"timeline_{setting.mode}"
        illustrations.append(_illustrate(step_timeline(pair, step), folder, name, caption))
        windows = []
        for run in pair:
            segments, window = step_segments(run.timeline(), step)
            waited = sum(s.duration_ms for s in segments if s.kind == "straggler wait") / run.config.gpus
            windows.append(window)
            rows.append((setting.text(), run.config.arm.name, str(step), f"{window:.3f}", f"{waited:.3f}"))
        sentences.append(
            f"{setting.text()}: step {step} takes {windows[0]:.2f} ms before and {windows[1]:.2f} ms after"
        )
    return Section(
        anchor="timeline",
        title=title,
        question=question,
        answer="; ".join(sentences) + ".",
        illustrations=tuple(illustrations),
        table=Table(
            header=("Setting", "Arm", "Step", "Window, ms", "In collectives, waiting, ms a rank"), rows=tuple(rows)
        ),
        command=_command(runs),
    )


def _pairs(runs: Sequence[RunRecord]) -> dict[Setting, list[RunRecord]]:
    """One setting a mode with both arms: the largest with at most eight ranks, else the smallest."""
    chosen: dict[str, Setting] = {}
    groups = by_setting(runs)
    for setting, group in groups.items():
        if BASELINE in group and BALANCED in group:
            held = chosen.get(setting.mode)
            if held is None or _lanes_preference(setting) > _lanes_preference(held):
                chosen[setting.mode] = setting
    return {setting: [groups[setting][arm][0] for arm in (BASELINE, BALANCED)] for setting in chosen.values()}


def _lanes_preference(setting: Setting) -> tuple[bool, int, int]:
    fits = setting.gpus <= MAX_RANKS
    return fits, setting.gpus if fits else -setting.gpus, setting.max_uih


def quality_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """NE of the arms."""
    title, question = "Quality", "Does balancing change what the model learns?"
    runs = [run for run in _of(records, "ladder") if run.config.mode == "measured"]
    if not runs:
        return _not_run("quality", title, question, "repro run ladder")
    rows = tuple(
        (setting.text(), arm, f"{spread(group[arm], 'ne').mean:.6f}")
        for setting, group in by_setting(runs).items()
        for arm in group
    )
    gaps = [
        f"{setting.text()}: NE of {arm} and {BASELINE} differ by at most {gap:.2g} over all steps"
        for (setting, arm), gap in ne_differences(runs).items()
    ]
    return Section(
        anchor="quality",
        title=title,
        question=question,
        answer="; ".join(gaps) + "."
        if gaps
        else f"Only one arm was run, so there is nothing to compare with {BASELINE}.",
        illustrations=(
            _illustrate(
                ne_curves(runs),
                folder,
                "ne",
                "Measured. Progressive NE: each global batch is scored before it is trained on. The paper publishes "
                "that its curves coincide, and no numbers.",
            ),
        ),
        table=Table(header=("Setting", "Arm", "NE, last quarter of steps"), rows=rows),
        command=_command(runs),
    )


_SECTIONS: tuple[Callable[[Sequence[RunRecord], Sequence[PaperValue], Path], Section], ...] = (
    ladder_section,
    straggler_section,
    ledger_section,
    timeline_section,
    quality_section,
)


def _of(records: Sequence[RunRecord], experiment: str) -> list[RunRecord]:
    return [record for record in records if record.config.experiment == experiment]


def _not_run(anchor: str, title: str, question: str, command: str) -> Section:
    return Section(
        anchor=anchor, title=title, question=question, answer="Not run.", illustrations=(), table=None, command=command
    )


def _illustrate(figure: Figure, folder: Path, name: str, caption: str) -> Illustration:
    return Illustration(figure=save_figure(figure, folder, name), caption=caption)


def _command(runs: Sequence[RunRecord]) -> str:
    return "; ".join(dict.fromkeys(run.provenance.command for run in runs))


def _modes(runs: Sequence[RunRecord]) -> str:
    return " and ".join(dict.fromkeys(setting.mode for setting in by_setting(runs))).capitalize()


def _each_mode(groups: dict[Setting, Group], sentence: Callable[[Setting, Group], str | None]) -> str:
    """One clause a mode, from its largest setting that has one."""
    by_mode: dict[str, str] = {}
    for setting, group in sorted(groups.items(), key=lambda item: (item[0].gpus, item[0].max_uih)):
        clause = sentence(setting, group)
        if clause:
            by_mode[setting.mode] = clause
    if not by_mode:
        return f"No setting has both {BASELINE} and {BALANCED}, so there is nothing to compare."
    return "; ".join(by_mode[mode] for mode in sorted(by_mode, reverse=True)) + "."
