"""What a prioritized run would cost at other collision rates.

A data set has one collision rate. These metrics answer for others by overriding it: the same batches, rows and plan,
but a given share of every rank's rows collides. At 100 % nothing is prefetched and every update is waited for: that is
the synchronous exchange of the same deduplicated rows, so the difference to it is what priority gains, and what lies
between it and TorchRec's arms is the gain of deduplication (and of hidden ids), which is not priority's.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro.config import RunConfig
from repro.execution.simulated.clusters import Cluster
from repro.execution.simulated.cost_model import GlobalBatch, step_costs
from repro.execution.simulated.engine import place, to_timeline
from repro.execution.simulated.prioritized_costs import StepRows
from repro.pipeline.step_plan import step_plan
from repro.timeline.ledger import bubble_metrics, build_ledger
from repro.timeline.schema import Metric

SHARES_PCT = (1, 2, 5, 10, 15, 100)
METRICS = ("exposed_comm_ms", "exposed_embedding_ms", "exposed_exclusive_ms", "step_ms")

NOTE = (
    "metrics named ..._at_Npct override the collision rate: N % of every rank's rows collide, whatever the data set "
    "says; 100 % is the synchronous exchange of deduplicated rows"
)


def metric_at(metric: str, share_pct: int) -> str:
    """Name of a metric under an overridden collision share, e.g. `exposed_embedding_ms_at_10pct`."""
    return f"{metric}_at_{share_pct}pct"


def at_other_shares(
    config: RunConfig, cluster: Cluster, batches: Sequence[tuple[GlobalBatch, StepRows]]
) -> dict[str, Metric]:
    """`METRICS` at each of `SHARES_PCT`.

    Args:
        batches: of every step, with the rows that really collide.
    """
    plan = step_plan(config.arm)
    names = dict.fromkeys((planned.op for planned in plan), "")
    found: dict[str, Metric] = {}
    for share_pct in SHARES_PCT:
        costs = [step_costs(config, cluster, batch, rows.with_share(share_pct / 100)) for batch, rows in batches]
        timeline = to_timeline(plan, place(plan, costs), costs, run_id="what if", transports=names)
        ledger = build_ledger(timeline).after_warmup(config.warmup_steps)
        metrics = bubble_metrics(ledger, requests_per_step=config.global_batch)
        found |= {metric_at(name, share_pct): metrics[name] for name in METRICS}
    return found
