"""Bubble ledger by arm: where a step's time goes, in parts that sum to the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from repro.errors import InputError, RunError
from repro.pipeline.ops import EMBEDDING_COLLECTIVES, Op
from repro.report.comparison import by_setting
from repro.report.style import INK, MODE_HATCH, WIDTH, mode_handles, styled
from repro.timeline.ledger import COLLECTIVES, PARTS, STRAGGLER
from repro.tracking.record import RunRecord

_BALANCING = {Op.LENGTHS_ALL_GATHER, Op.CANDIDATES_ALL_GATHER, Op.SAMPLES_ALL_TO_ALL}
_TOLERANCE = 1e-6

KINDS: dict[str, tuple[str, str]] = {
    "useful compute": ("#009E73", "#ffffff"),
    "contention": ("#F0E442", "#111111"),
    "exposed embedding exchange": ("#0072B2", "#ffffff"),
    "exposed balancing exchange": ("#56B4E9", "#111111"),
    "exposed dense all-reduce": ("#CC79A7", "#111111"),
    "straggler wait": ("#D55E00", "#ffffff"),
    "host": ("#777777", "#ffffff"),
    "other idle": ("#d9d9d9", "#111111"),
}
"""Kind of time -> (colour, colour of text on it). Timelines use the same."""


def kind_of_part(part: str) -> str:
    """The kind a ledger part is drawn as."""
    fixed = {
        "useful_compute": "useful compute",
        "contention": "contention",
        STRAGGLER: "straggler wait",
        "host_wait": "host",
        "other_idle": "other idle",
    }
    return fixed[part] if part in fixed else kind_of_collective(_COLLECTIVE_OF_PART[part])


def kind_of_collective(op: Op) -> str:
    """The kind a collective is drawn as while it moves bytes."""
    if op in EMBEDDING_COLLECTIVES:
        return "exposed embedding exchange"
    return "exposed balancing exchange" if op in _BALANCING else "exposed dense all-reduce"


_COLLECTIVE_OF_PART = {f"exposed_{op.label}": op for op in COLLECTIVES}


def ledger_shares(record: RunRecord) -> dict[str, float]:
    """Part -> percent of the timed steps (warm-up left out), mean over ranks; the parts sum to 100.

    Raises:
        InputError: a row lacks a part.
        RunError: the parts do not sum to the step.
    """
    timed = [row for row in record.steps() if not row["warmup"]]
    try:
        total = sum(row["throughput/step_ms"] for row in timed)
        shares = {part: 100 * sum(row[f"ledger/{part}_ms"] for row in timed) / total for part in PARTS}
    except KeyError as missing:
        raise InputError(f"{record.folder}: its per-step rows lack {missing}; run it again") from None
    if abs(sum(shares.values()) - 100) > _TOLERANCE * 100:
        raise RunError(f"{record.folder}: ledger parts sum to {sum(shares.values()):.6f} % of the step")
    return shares


def kind_shares(record: RunRecord) -> dict[str, float]:
    """Kind -> percent of the timed steps."""
    shares = dict.fromkeys(KINDS, 0.0)
    for part, share in ledger_shares(record).items():
        shares[kind_of_part(part)] += share
    return shares


def ledger_bars(records: Sequence[RunRecord]) -> Figure:
    """One stacked bar a (setting, arm), mean over seeds.

    Raises:
        InputError: no runs.
    """
    if not records:
        raise InputError("ledger bars need at least one run")
    bars: list[tuple[str, str, dict[str, float]]] = []
    for setting, group in by_setting(records).items():
        for arm, runs in group.items():
            shares = [kind_shares(run) for run in runs]
            mean = {kind: sum(share[kind] for share in shares) / len(shares) for kind in KINDS}
            bars.append((f"{arm}\n{setting.text()}", setting.mode, mean))
    used = [kind for kind in KINDS if any(mean[kind] > 0 for _, _, mean in bars)]
    with styled():
        figure = Figure(figsize=(WIDTH, 1.1 + 0.5 * len(bars)), layout="constrained")
        axes = figure.subplots()
        for y, (_, mode, mean) in enumerate(bars):
            left = 0.0
            for kind in used:
                colour, text = KINDS[kind]
                style: dict[str, Any] = {"color": colour, "edgecolor": INK, "linewidth": 0.4, "hatch": MODE_HATCH[mode]}
                axes.barh(y, mean[kind], 0.72, left=left, **style)
                if mean[kind] >= 4:
                    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
                    axes.text(
                        left + mean[kind] / 2, y, f"{mean[kind]:.0f}", ha="center", va="center", color=text, bbox=box
                    )
                left += mean[kind]
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the step, % (mean over ranks and timed steps)")
        axes.grid(axis="y", visible=False)
        modes = sorted({mode for _, mode, _ in bars})
        handles = [Patch(facecolor=KINDS[kind][0], edgecolor=INK, linewidth=0.4) for kind in used]
        figure.legend([*handles, *mode_handles(modes)], [*used, *modes], loc="outside upper center", ncols=4)
    return figure
