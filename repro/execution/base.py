"""What an executor returns, and how it becomes metrics: the same for measured and simulated runs.

NE is progressive: each global batch is scored before it is trained on, so every prediction is for requests the
model has not seen. `ne` of a run is over its last quarter of steps; the curve is in the per-step rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repro.config import RunConfig
from repro.model.normalized_entropy import normalized_entropy
from repro.timeline.ledger import PARTS, Ledger, bubble_metrics, build_ledger
from repro.timeline.schema import Metric, Timeline

NE_WINDOW = 0.25
"""Share of the run, from its end, over which the run's `ne` is taken."""


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """Facts of one global batch that no span holds."""

    step: int
    requests: int
    labels: int
    uih_tokens: int
    sparsity_pct: float
    """Share of padding needed to pad every rank's samples to the batch's longest UIH (paper, "Definitions")."""
    loss_sum: float | None = None
    """Sum of log losses over the global batch, nats; None when nothing was trained."""
    positives: int | None = None
    collision_pct: float | None = None
    """Distinct rows, over all ranks, that the batch before touches too / distinct rows; None for the first batch, or
    where nobody counted (`repro.embedding.collision`)."""
    exchange_collision_pct: float | None = None
    """The same share of the rows that the exchange moves, where a row counts once for each rank that asks for it."""
    lookups: int | None = None
    """Embedding lookups of all ranks."""
    exchanged_rows: int | None = None
    """Distinct rows of each rank, summed over ranks: what a deduplicated exchange moves each way."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What an executor hands back."""

    timeline: Timeline
    facts: list[StepFacts]
    hardware: dict[str, str]
    notes: tuple[str, ...] = field(default=())
    metrics: dict[str, Metric] = field(default_factory=dict)
    """What the executor knows beyond timeline and facts; names must not be those of `summarize`."""


def sparsity_pct(lengths_S: np.ndarray) -> float:
    """Share of padding in a batch padded to its longest sample, percent. `lengths_S`: UIH lengths, integer (S,)."""
    longest = int(lengths_S.max(initial=0))
    return 100.0 * (1.0 - float(lengths_S.mean()) / longest) if longest else 0.0


def summarize(config: RunConfig, result: RunResult) -> tuple[dict[str, Metric], list[dict[str, Any]]]:
    """Metrics of the run and one row a step under stable keys (`bubble/...`, `ledger/...`, `quality/...`)."""
    ledger = build_ledger(result.timeline)
    timed = ledger.after_warmup(config.warmup_steps)
    metrics = bubble_metrics(timed, requests_per_step=config.global_batch)
    metrics["sparsity_pct"] = Metric(value=float(np.mean([facts.sparsity_pct for facts in result.facts])), unit="%")
    if all(facts.loss_sum is not None for facts in result.facts):
        last = result.facts[-max(1, round(NE_WINDOW * len(result.facts))) :]
        metrics["ne"] = Metric(value=_ne(last), unit="log loss / base-rate entropy")
    metrics |= _row_metrics(result.facts[config.warmup_steps :]) | result.metrics
    return metrics, _step_rows(config, ledger, result.facts)


def _row_metrics(facts: list[StepFacts]) -> dict[str, Metric]:
    """What the timed steps say of embedding rows; absent where nobody counted."""
    metrics = {}
    for name in ("collision_pct", "exchange_collision_pct"):
        counted = [getattr(fact, name) for fact in facts if getattr(fact, name) is not None]
        if counted:
            metrics[name] = Metric(value=float(np.mean(counted)), unit="%")
        if counted and name == "collision_pct":
            metrics["collision_p99_pct"] = Metric(value=float(np.percentile(counted, 99)), unit="%")
    moved = [(fact.lookups, fact.exchanged_rows) for fact in facts if fact.lookups and fact.exchanged_rows is not None]
    if moved:
        lookups, rows = np.sum(moved, axis=0)
        metrics["dedup_saving_pct"] = Metric(value=float(100 * (1 - rows / lookups)), unit="%")
    return metrics


def _ne(facts: list[StepFacts]) -> float:
    return normalized_entropy(
        sum(f.loss_sum or 0.0 for f in facts), sum(f.positives or 0 for f in facts), sum(f.labels for f in facts)
    )


def _step_rows(config: RunConfig, ledger: Ledger, facts: list[StepFacts]) -> list[dict[str, Any]]:
    rows = []
    for index, fact in enumerate(facts):
        one = Ledger(
            steps=ledger.steps[index : index + 1],
            window_ns=ledger.window_ns[index : index + 1],
            parts_ns={name: part[index : index + 1] for name, part in ledger.parts_ns.items()},
        )
        row: dict[str, Any] = {"step": fact.step, "warmup": index < config.warmup_steps}
        for name, metric in bubble_metrics(one, requests_per_step=fact.requests).items():
            group = "throughput" if name in ("qps", "step_ms") else "bubble"
            row[f"{group}/{name}"] = metric.value
        row["bubble/sparsity_pct"] = fact.sparsity_pct
        for name, share in (
            ("collision_pct", fact.collision_pct),
            ("exchange_collision_pct", fact.exchange_collision_pct),
        ):
            if share is not None:
                row[f"bubble/{name}"] = share
        for part in PARTS:
            row[f"ledger/{part}_ms"] = float(one.part(part).mean() / 1e6)
        if fact.loss_sum is not None:
            row["quality/log_loss"] = fact.loss_sum / fact.labels
            row["quality/ne"] = _ne(facts[: index + 1])
        rows.append(row)
    return rows
