"""The claim table: what the paper published, and the nearest thing a run here says about it.

A run's value stands beside a published one together with everything in which their settings differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from repro.report.comparison import BASELINE, Group, Setting, Spread, by_setting, events, ratio_to_baseline, spread
from repro.report.figures.quality import ne_differences
from repro.report.published import PaperValue, with_unit
from repro.report.tables import UIH_TOLERANCE
from repro.tracking.record import RunRecord

CLAIM_MODES = ("simulated", "emulated", "measured")

STAND_IN = {"freescale": "balance+priority"}
"""Until an arm was run: the one that lacks its last technique."""

CLAIM_TEXT = {
    "straggler_pct": "Straggler wait, share of the step",
    "straggler_reduction": "Straggler share, TorchRec / balanced",
    "exposed_embedding_ms": "Exposed embedding exchange",
    "exposed_embedding_reduction": "Exposed embedding exchange, TorchRec / FreeScale",
    "exposed_comm_change_pct": "Exposed communication against TorchRec",
    "ne_difference": "NE against TorchRec, largest difference",
    "collision_pct": "Rows updated in t and read in t+1, mean",
    "collision_p99_pct": "Rows updated in t and read in t+1, 99th percentile",
    "kernel_speedup": "Jagged dispatch and combine, Triton / eager",
    "kernel_time_change_pct": "Dense kernels beside communication, SM-free against NCCL",
    "metadata_saving_ms": "Metadata exchange hidden by SDD",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a run says about a published value."""

    text: str
    differs: str
    """In what its setting differs from the published one."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the table."""

    text: str
    setting: str
    published: PaperValue
    findings: dict[str, Finding | None]
    """Mode -> finding; None when nothing was run."""

    @property
    def has_runs(self) -> bool:
        """Whether any mode has a finding."""
        return any(self.findings.values())


def claims(records: Sequence[RunRecord], published: Sequence[PaperValue]) -> list[Claim]:
    """One claim a published value, in the paper's order."""
    # By experiment: the same setting in two experiments may differ in steps, hence in batches.
    experiments = dict.fromkeys(record.config.experiment for record in records)
    groups = [
        (experiment, setting, group)
        for experiment in experiments
        for setting, group in by_setting(r for r in records if r.config.experiment == experiment).items()
    ]
    return [
        Claim(
            text=CLAIM_TEXT.get(value.metric, value.metric),
            setting=_published_setting(value),
            published=value,
            findings={mode: _finding(groups, value, mode) for mode in CLAIM_MODES},
        )
        for value in published
    ]


def _finding(groups: Sequence[tuple[str, Setting, Group]], value: PaperValue, mode: str) -> Finding | None:
    """From the nearest setting; of equally near ones, from the experiment that is about this value."""
    best: tuple[tuple[float, bool], Setting, Group, Spread] | None = None
    arm = value.arm
    if not any(arm in group for _, _, group in groups):
        arm = STAND_IN.get(arm, arm)
    for experiment, setting, group in groups:
        if setting.mode != mode or arm not in group:
            continue
        found = _evaluate(group, replace(value, arm=arm))
        distance = _distance(setting, value), experiment != value.experiment
        if found is not None and (best is None or distance < best[0]):
            best = (distance, setting, group, found)
    if best is None:
        return None
    _, setting, group, found = best
    differs = _differences(setting, value) + (f", {arm} for {value.arm}" if arm != value.arm else "")
    share = group[arm][0].metrics.get("exchange_collision_pct")
    if share is not None and value.metric.startswith("exposed_"):
        differs += f", {share.value:.0f} % of exchanged rows collide"
    if value.unit == "ms" and setting.cluster.endswith("_cpu"):
        return Finding(text="CPU time, not compared", differs=differs)
    return Finding(text=with_unit(_number(found.mean), value.unit), differs=differs)


def _evaluate(group: Group, value: PaperValue) -> Spread | None:
    """The published metric computed from one setting's runs; None when these runs cannot say it."""
    match value.metric:
        case "straggler_reduction":
            return _inverse(ratio_to_baseline(group, value.arm, "straggler_pct"))
        case "exposed_embedding_reduction":
            return _inverse(ratio_to_baseline(group, value.arm, "exposed_embedding_ms"))
        case "exposed_comm_change_pct":
            ratio = ratio_to_baseline(group, value.arm, "exposed_comm_ms")
            return Spread.of([100 * (ratio.mean - 1)]) if ratio else None
        case "metadata_saving_ms":
            if BASELINE not in group:
                return None
            before, after = (spread(group[arm], "step_ms").mean for arm in (BASELINE, value.arm))
            return Spread.of([before - after])
        case "ne_difference":
            trained = [run for runs in group.values() for run in runs if "ne" in run.metrics]
            gaps = [gap for (_, arm), gap in ne_differences(trained).items() if arm == value.arm]
            return Spread.of(gaps) if gaps else None
        case metric if all(metric in run.metrics for run in group[value.arm]):
            return spread(group[value.arm], metric)
        case _:
            return None


def _inverse(ratio: Spread | None) -> Spread | None:
    return Spread.of([1 / ratio.mean]) if ratio and ratio.mean > 0 else None


def _distance(setting: Setting, value: PaperValue) -> float:
    pairs = ((setting.gpus, value.gpus), (setting.max_uih, value.max_uih), (setting.batch, value.batch))
    return sum(abs(math.log2(ours / theirs)) for ours, theirs in pairs if theirs is not None)


def _differences(setting: Setting, value: PaperValue) -> str:
    parts = [f"{setting.dataset} data"]
    if value.gpus is not None and (setting.gpus != value.gpus or setting.cluster.endswith("_cpu")):
        parts.append(f"{setting.world} for {value.gpus} GPUs")
    if value.max_uih is not None and abs(setting.max_uih / value.max_uih - 1) > UIH_TOLERANCE:
        parts.append(f"UIH {events(setting.max_uih)} for {events(value.max_uih)}")
    if value.batch not in (None, setting.batch):
        parts.append(f"batch {setting.batch} for {value.batch}")
    return ", ".join([*parts, f"model {setting.model}"])


def _published_setting(value: PaperValue) -> str:
    parts = [value.arm]
    if value.gpus is not None:
        parts.append(f"{value.gpus} GPUs")
    if value.max_uih is not None:
        parts.append(f"UIH {events(value.max_uih)}")
    if value.batch is not None:
        parts.append(f"batch {value.batch}")
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
