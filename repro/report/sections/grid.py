"""What each technique has a share in, from all combinations of the three."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro.config import Arm
from repro.report.comparison import Group, by_setting, spread
from repro.report.figures import steps_figure
from repro.report.figures.headline import METRIC
from repro.report.published import PaperValue
from repro.report.sections.base import Section, Table, commands, illustrate, not_run, runs_of, sentence_of
from repro.report.sections.headline import largest
from repro.report.shares import Share, missing, own_shares, techniques
from repro.tracking.record import RunRecord

_QUANTITY = {METRIC: "exposed communication", "step_ms": "step"}


def grid_section(records: Sequence[RunRecord], published: Sequence[PaperValue], folder: Path) -> Section:
    """Each technique's own share, from all combinations."""
    del published  # the paper adds techniques up in one order
    title = "Each technique's own share"
    question = "What does each technique do by itself, on top of the others, and whatever the order?"
    runs = largest(runs_of(records, "grid"))
    if not runs:
        return not_run("grid", title, question, "repro run grid")
    ((setting, group),) = by_setting(runs).items()
    values = {
        (metric, transport): _corners(group, metric, transport)
        for metric in _QUANTITY
        for transport in dict.fromkeys(arm.transport for arm in _arms(group) if arm.transport != "process_group")
    }
    shares = {key: own_shares(found) for key, found in values.items() if not missing(found)}
    return Section(
        anchor="grid",
        title=title,
        question=question,
        answer=sentence_of(
            [
                f"{setting.text()}, mean over all orders",
                *(_says(*item) for item in shares.items()),
                *(f"with {key[1]}: no run with {missing(found)}" for key, found in values.items() if key not in shares),
            ]
        ),
        illustrations=(
            illustrate(
                steps_figure(runs),
                folder,
                "grid",
                f"{setting.mode.capitalize()}: every combination of the three techniques. Technique 3 is smfree (all "
                "AllGathers and AllToAlls over the host-staged ring) or smfree_hidden (those behind dense work only). "
                "Prioritized updates include deduplication. With TorchRec's blocking exchange none of it runs behind "
                "dense work: there smfree can only cost, and smfree_hidden moves what balancing exchanges. Longer "
                "transfers in the background turn waiting into exposed time: read the whole step.",
            ),
        ),
        table=Table(
            header=("Quantity", "Technique", "Alone, ms", "Last, ms", "Mean over orders, ms", "of the whole change, %"),
            rows=tuple(row for item in shares.items() for row in _share_rows(*item)),
        ),
        command=commands(runs),
    )


def _arms(group: Group) -> list[Arm]:
    return [runs[0].config.arm for runs in group.values()]


def _corners(group: Group, metric: str, transport: str) -> dict[frozenset[str], float]:
    """A metric by the techniques that are on, with technique 3 in one form."""
    return {
        techniques(arm): spread(group[arm.name], metric).mean
        for arm in _arms(group)
        if arm.transport in ("process_group", transport)
    }


def _says(key: tuple[str, str], shares: dict[str, Share]) -> str:
    metric, transport = key
    whole = sum(share.mean for share in shares.values())
    each = ", ".join(f"{share.mean:+.1f} ms by {technique}" for technique, share in shares.items())
    return f"{_QUANTITY[metric]} with {transport}: {whole:+.1f} ms, of which {each}"


def _share_rows(key: tuple[str, str], shares: dict[str, Share]) -> list[tuple[str, ...]]:
    metric, transport = key
    whole = sum(share.mean for share in shares.values())
    return [
        (
            f"{_QUANTITY[metric]}, with {transport}",
            technique,
            *(f"{value:+.2f}" for value in (share.alone, share.last, share.mean)),
            f"{100 * share.mean / whole:.0f}" if whole else "no change",
        )
        for technique, share in shares.items()
    ]
