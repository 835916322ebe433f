"""What each metric means: formula and unit, before any value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """One metric of `summary.json`."""

    metric: str
    unit: str
    formula: str
    meaning: str


DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "straggler_pct",
        "%",
        "100 × Σ straggler wait / Σ step, over ranks and timed steps",
        "Time a rank stands in a collective that not all ranks have entered yet. The paper's straggler percentage.",
    ),
    Definition(
        "exposed_comm_ms",
        "ms a step",
        "mean over ranks and timed steps of Σ over collectives of time moving bytes while no compute runs",
        "Communication that is not hidden behind computation. Waiting for the last rank is not in it.",
    ),
    Definition(
        "exposed_embedding_ms",
        "ms a step",
        "the same, over the embedding exchange only (ID splits, IDs, embeddings, gradients)",
        "What prioritized updates attack (paper, Fig. 9).",
    ),
    Definition(
        "exposed_exclusive_ms",
        "ms a step",
        "of exposed_embedding_ms, the part of exclusive embeddings and gradients",
        "Rows of prioritized updates that no step should wait for, in flight while nothing computed. Beside host work "
        "it costs no time.",
    ),
    Definition(
        "exposed_balance_pct",
        "%",
        "100 × Σ time in which lengths, candidate counts or samples move and no compute runs / Σ step",
        "What the balancing exchange itself costs; it is meant to hide behind the batch before.",
    ),
    Definition(
        "bubble_pct",
        "%",
        "100 × (1 − Σ compute / Σ step)",
        "Share of a step in which a rank computes nothing: stragglers, exposed communication, host, idle.",
    ),
    Definition(
        "contention_pct",
        "%",
        "100 × Σ (compute − its duration alone) / Σ step",
        "Compute stretched by communication that runs beside it; 0 where no reference duration is known.",
    ),
    Definition(
        "imbalance", "max / mean", "mean over steps of max over ranks / mean over ranks of compute", "1 is even."
    ),
    Definition(
        "step_ms", "ms", "mean over timed steps of the window", "From the last rank's end of one step to the next."
    ),
    Definition("qps", "requests/s", "requests in a global batch / mean step", "Over all ranks together."),
    Definition(
        "sparsity_pct",
        "%",
        "100 × (1 − mean UIH / longest UIH of the global batch), mean over steps",
        "Padding needed if every sample were padded to the longest.",
    ),
    Definition(
        "collision_pct",
        "%",
        "100 × distinct rows that the batch before touches too / distinct rows, mean over timed steps",
        "Rows count once, over all ranks and tables. A property of the data set and the global batch.",
    ),
    Definition("collision_p99_pct", "%", "99th percentile of the same over timed steps", "Its tail (paper, Fig. 3)."),
    Definition(
        "exchange_collision_pct",
        "%",
        "the same share, where a row counts once for each rank that asks for it",
        "What the exposed part of prioritized updates grows with; higher, as popular rows are asked for often.",
    ),
    Definition(
        "dedup_saving_pct",
        "%",
        "100 × (1 − distinct rows of each rank, summed / lookups)",
        "What sending a row once a rank saves, whatever the priority.",
    ),
    Definition(
        "…_at_Npct",
        "as the metric",
        "the metric, if N % of every rank's rows collided",
        "Simulated arms with priority only; overrides the data set's rate (assumption A19). 100: synchronous exchange "
        "of deduplicated rows.",
    ),
    Definition(
        "ne",
        "log loss / base-rate entropy",
        "Σ log loss / (labels × H(positives / labels)), last quarter of steps",
        "Normalized entropy. Each batch is scored before it is trained on. Lower is better; 1 is no better than "
        "the base rate.",
    ),
)

LEDGER_RULE = (
    "For each instant of a rank the first that holds: compute runs; a collective moves bytes; a collective waits for "
    "its last rank; host work runs; nothing. So the parts of a step sum to the step exactly, on every rank."
)
