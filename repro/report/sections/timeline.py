"""One step, rank by rank, before and after balancing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Setting, by_setting
from repro.report.figures import step_timeline, typical_step
from repro.report.figures.timeline import MAX_RANKS, step_segments
from repro.report.published import PaperValue
from repro.report.sections.base import BALANCED, Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.tracking.record import RunRecord


def timeline_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """One step, rank by rank, before and after balancing."""
    title, question = "One step, rank by rank", "Who waits for whom, before and after balancing?"
    runs = runs_of(records, "ladder")
    pairs = _pairs(runs)
    if not pairs:
        return not_run("timeline", title, question, "repro run ladder")
    illustrations, rows, sentences = [], [], []
    for setting, pair in pairs.items():
        step = typical_step(pair[0])
        caption = (
            f"{setting.text()}. Step {step}: the {BASELINE} step of median straggler share, and the same batch after."
        )
        name = f"timeline_{setting.mode}"
        illustrations.append(illustrate(step_timeline(pair, step), folder, name, caption))
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
        answer=sentence_of(sentences),
        illustrations=tuple(illustrations),
        table=Table(
            header=("Setting", "Arm", "Step", "Window, ms", "In collectives, waiting, ms a rank"), rows=tuple(rows)
        ),
        command=commands(runs),
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
