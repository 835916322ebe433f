"""The bubble ledger: where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.report.comparison import BASELINE, Group, Setting, by_setting
from repro.report.figures import ledger_bars
from repro.report.figures.ledger import KINDS, kind_shares, ledger_shares
from repro.report.published import PaperValue
from repro.report.sections.base import (
    BALANCED,
    Section,
    Table,
    answer_by_mode,
    commands,
    illustrate,
    modes_of,
    not_run,
    runs_of,
)
from repro.timeline.ledger import PARTS
from repro.tracking.record import RunRecord


def ledger_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Where a step's time goes."""
    title, question = "Bubble ledger", "Where does the time of a step go?"
    runs = [*runs_of(records, "ladder"), *runs_of(records, "ladder_emulated")]
    if not runs:
        return not_run("ledger", title, question, "repro run ladder")
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
        answer=answer_by_mode(groups, _ledger_sentence),
        illustrations=(
            illustrate(
                ledger_bars(runs),
                folder,
                "ledger",
                f"{modes_of(runs)}. Parts of a bar sum to 100 % of the step; warm-up steps are left out.",
            ),
        ),
        table=Table(
            header=("Setting (% of step)", "Arm", *(part.replace("_", " ") for part in used)),
            rows=rows,
        ),
        command=commands(runs),
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
