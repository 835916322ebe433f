"""What ranks of a run leave on disk, and how it is merged into one result.

    <run>/spans-rank0.parquet, facts-rank0.json                        of the steps since the last checkpoint
    <run>/recorded/step-00000008/spans-rank0.parquet, facts-rank0.json of those before the checkpoint after step 8

A rank writes a part before each checkpoint, and one at the end. So a run that was cut short and went on from a
checkpoint has all its steps, those of each attempt up to the checkpoint that the next one began at.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repro.config import RunConfig
from repro.embedding.id_exchange import RowCounts
from repro.errors import RunError
from repro.execution.base import RunResult, StepFacts
from repro.pipeline.checkpoint_folder import name_of
from repro.pipeline.pace import Lateness
from repro.pipeline.train_step import RankStep
from repro.timeline.schema import Span, Timeline

RECORDED = "recorded"
SPANS_OF_RANK = "spans-rank{rank}.parquet"
FACTS_OF_RANK = "facts-rank{rank}.json"


@dataclass(frozen=True, kw_only=True)
class RankPart:
    """What one rank recorded in some consecutive steps."""

    spans: list[Span]
    steps: list[RankStep]
    hardware: dict[str, str]
    paced: Lateness | None
    attempt_from: int
    """First step of the attempt that recorded it: 0, or that of the checkpoint it went on from."""
    checkpoint_seconds: float
    """Time of the checkpoint before these steps; 0 if there was none in this attempt."""


def folder_of_part(run: Path, step: int) -> Path:
    """Where ranks leave what they recorded before the checkpoint after `step` steps."""
    return run / RECORDED / name_of(step)


def drop_parts_after(run: Path, step: int) -> None:
    """Remove what an attempt recorded for a checkpoint that it did not complete."""
    for folder in (run / RECORDED).glob("step-*"):
        if folder.name > name_of(step):
            shutil.rmtree(folder)


def write_part(part: RankPart, folder: Path, *, rank: int, run_id: str, mode: str) -> None:
    """Write into `folder`, which is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    Timeline(part.spans, run=run_id, mode=mode).write(folder / SPANS_OF_RANK.format(rank=rank))
    facts = {name: value for name, value in asdict(part).items() if name != "spans"}
    (folder / FACTS_OF_RANK.format(rank=rank)).write_text(json.dumps(facts), encoding="utf-8")


def gather(config: RunConfig, out: Path, run_id: str) -> RunResult:
    """Merge what all ranks wrote into one result. The ranks share a host, hence a clock: no offsets are applied.

    Raises:
        RunError: a rank's part is missing.
    """
    folders = [*sorted((out / RECORDED).glob("step-*")), out]
    parts_of_rank = [[_read_part(folder, rank) for folder in folders] for rank in range(config.gpus)]
    parts = [part for of_rank in parts_of_rank for part in of_rank]
    steps_of_rank = [[step for part in of_rank for step in part.steps] for of_rank in parts_of_rank]
    for rank, steps in enumerate(steps_of_rank):
        if [step.step for step in steps] != list(range(config.steps)):
            raise RunError(f"rank {rank} did not record the {config.steps} steps of the run, each once, in {out}")
    merged = [_merge(step) for step in zip(*steps_of_rank, strict=True)]
    timeline = Timeline([span for part in parts for span in part.spans], run=run_id, mode=config.mode)
    paced = [part.paced for part in parts if part.paced]
    notes = ((_kept(paced),) if paced else ()) + _cut_short(parts_of_rank[0])
    return RunResult(timeline=timeline, facts=merged, hardware=parts_of_rank[0][-1].hardware, notes=notes)


def _read_part(folder: Path, rank: int) -> RankPart:
    spans, facts = folder / SPANS_OF_RANK.format(rank=rank), folder / FACTS_OF_RANK.format(rank=rank)
    if not spans.exists() or not facts.exists():
        raise RunError(f"rank {rank} left no result in {folder}; see its log there")
    raw = json.loads(facts.read_text(encoding="utf-8"))
    raw["steps"] = [_rank_step(step) for step in raw["steps"]]
    raw["paced"] = Lateness(**raw["paced"]) if raw["paced"] else None
    return RankPart(spans=Timeline.read(spans).spans, **raw)


def _cut_short(parts: list[RankPart]) -> tuple[str, ...]:
    """What a reader must know of a run's checkpoints and attempts."""
    notes = []
    saved = [part.checkpoint_seconds for part in parts if part.checkpoint_seconds]
    begun = sorted({part.attempt_from for part in parts} - {0})
    if saved:
        beside = ", beside those that an attempt began at" if begun else ""
        notes.append(f"checkpoints: {len(saved)}, {sum(saved):.2f} s in all{beside}; left out of the steps' times")
    if begun:
        others = "" if len({str(part.hardware) for part in parts}) == 1 else ", partly on other hardware"
        notes.append(
            f"cut short, and gone on from the checkpoint after step {', '.join(map(str, begun))}{others}: the steps "
            "before it are those of the attempt before, the next ones were trained by processes just started"
        )
    return tuple(notes)


def _kept(ranks: list[Lateness]) -> str:
    """Whether the pace held."""
    deadlines, missed = sum(rank.deadlines for rank in ranks), sum(rank.missed for rank in ranks)
    if not missed:
        return f"pace: all {deadlines} deadlines of dense compute were met"
    worst_ms = max(rank.worst_ns for rank in ranks) / 1e6
    return (
        f"pace: the small real model took longer than the emulated device in {missed} of {deadlines} deadlines, by up "
        f"to {worst_ms:.1f} ms; those computed late"
    )


def _merge(ranks: tuple[RankStep, ...]) -> StepFacts:
    """Facts of the global batch from those of the ranks."""
    requests = sum(rank.requests for rank in ranks)
    tokens = sum(rank.uih_tokens for rank in ranks)
    longest = max(rank.longest_uih for rank in ranks)
    return StepFacts(
        step=ranks[0].step,
        requests=requests,
        labels=sum(rank.labels for rank in ranks),
        uih_tokens=tokens,
        sparsity_pct=100.0 * (1.0 - tokens / (requests * longest)) if longest else 0.0,
        loss_sum=sum(rank.loss_sum for rank in ranks),
        positives=sum(rank.positives for rank in ranks),
        **_row_facts(ranks),
    )


def _rank_step(raw: dict[str, Any]) -> RankStep:
    rows = raw["rows"]
    return RankStep(**{**raw, "rows": None if rows is None else RowCounts(**rows)})


def _row_facts(ranks: tuple[RankStep, ...]) -> dict[str, Any]:
    """Rows of all ranks; nothing where they were not counted."""
    rows = [rank.rows for rank in ranks if rank.rows is not None]
    if not rows:
        return {}
    exchanged = sum(count.exchanged for count in rows)
    facts: dict[str, Any] = {"lookups": sum(count.lookups for count in rows), "exchanged_rows": exchanged}
    if ranks[0].step > 0:
        facts["collision_pct"] = 100 * sum(count.colliding for count in rows) / sum(count.distinct for count in rows)
        facts["exchange_collision_pct"] = 100 * sum(count.late for count in rows) / exchanged
    return facts
