"""The simulated executor: a run's real batches, partition and rows, with durations from the cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.errors import InputError
from repro.execution.base import RunResult, StepFacts, sparsity_pct
from repro.execution.simulated import whatif
from repro.execution.simulated.assumptions import ASSUMPTIONS
from repro.execution.simulated.batches import Batches
from repro.execution.simulated.carriers import NAMES, carrier_of
from repro.execution.simulated.clusters import Cluster, cluster
from repro.execution.simulated.cost_model import GlobalBatch, step_costs
from repro.execution.simulated.engine import place, to_timeline
from repro.execution.simulated.prioritized_costs import StepRows
from repro.pipeline.step_plan import step_plan


def simulate(
    config: RunConfig,
    dataset: PreparedDataset,
    *,
    run_id: str,
    progress: Callable[[int], None] = lambda steps_done: None,
) -> RunResult:
    """Simulate `config.steps` steps of `config.arm` on `config.cluster`. Deterministic.

    Args:
        dataset: where the global batches come from; lengths and ids are read.
        run_id: name of the timeline.
        progress: called after each step with the number of steps done.

    Raises:
        InputError: not a simulated config, a cluster without profile or with too few GPUs, fewer global batches than
            steps, or heads wider than attention kernels go.
    """
    hardware = _checked_cluster(config, dataset)
    plan = step_plan(config.arm)
    batches = Batches(config, dataset)
    deduplicated = config.arm.exchange in ("prioritized", "stale")
    costs, facts, seen = [], [], []
    for step in range(config.steps):
        batch = batches.batch(step)
        rows = batches.rows(step, batch) if deduplicated else None
        costs.append(step_costs(config, hardware, batch, rows))
        facts.append(_facts(step, batch, rows, batches.collision_pct(step)))
        if rows is not None:
            seen.append((batch, rows))
        progress(step + 1)
    prioritized = config.arm.exchange == "prioritized"
    names = {planned.op: NAMES[carrier_of(config.arm, planned.op)] for planned in plan}
    return RunResult(
        timeline=to_timeline(plan, place(plan, costs), costs, run_id=run_id, transports=names),
        facts=facts,
        hardware={"cluster": hardware.name, "gpu": hardware.gpu, "gpus": str(config.gpus)},
        notes=(*(str(assumption) for assumption in ASSUMPTIONS), *((whatif.NOTE,) if prioritized else ())),
        metrics=whatif.at_other_shares(config, hardware, seen) if prioritized else {},
    )


def _facts(step: int, batch: GlobalBatch, rows: StepRows | None, collision_pct: float | None) -> StepFacts:
    facts = StepFacts(
        step=step,
        requests=batch.uih.size,
        labels=int(batch.candidates.sum()),
        uih_tokens=int(batch.uih.sum()),
        sparsity_pct=sparsity_pct(batch.uih),
        collision_pct=collision_pct,
        lookups=int(batch.ids().sum()),
    )
    if rows is None:
        return facts
    asked = float(rows.now.asked.sum())
    late_pct = 100.0 * float(rows.now.asked_late.sum()) / max(asked, 1.0)
    return replace(
        facts,
        exchanged_rows=round(asked),
        exchange_collision_pct=None if collision_pct is None else late_pct,
    )


def _checked_cluster(config: RunConfig, dataset: PreparedDataset) -> Cluster:
    if config.mode != "simulated":
        raise InputError(f"mode: the simulator runs simulated configs, got {config.mode!r}")
    hardware = cluster(config.cluster)
    if config.gpus > hardware.gpus:
        raise InputError(f"gpus: {config.gpus}, but cluster {hardware.name} has {hardware.gpus}; lower gpus")
    available = dataset.global_batches(config.global_batch)
    if config.steps > available:
        raise InputError(
            f"steps: {config.steps}, but data set {config.dataset} holds {available} global batches of "
            f"{config.global_batch} requests ({config.gpus} gpus x batch {config.batch}); "
            "lower steps, batch or gpus, or prepare more requests"
        )
    return hardware
