"""The simulated executor: a run's real batches and real partition, with durations from the cost model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from repro.balance.partition import assign
from repro.config import RunConfig
from repro.data.dataset import PreparedDataset
from repro.errors import InputError
from repro.execution.base import RunResult, StepFacts, sparsity_pct
from repro.execution.simulated.assumptions import ASSUMPTIONS
from repro.execution.simulated.clusters import Cluster, cluster
from repro.execution.simulated.cost_model import GlobalBatch, step_costs
from repro.execution.simulated.engine import place, to_timeline
from repro.pipeline.step_plan import step_plan

TRANSPORT = "simulated-nccl"


def simulate(
    config: RunConfig,
    dataset: PreparedDataset,
    *,
    run_id: str,
    progress: Callable[[int], None] = lambda steps_done: None,
) -> RunResult:
    """Simulate `config.steps` steps of `config.arm` on `config.cluster`. Deterministic.

    Args:
        dataset: where the global batches come from; only lengths are read.
        run_id: name of the timeline.
        progress: called after each step with the number of steps done.

    Raises:
        InputError: not a simulated config, a cluster without profile or with too few GPUs, fewer global batches than
            steps, or heads wider than attention kernels go.
    """
    hardware = _checked_cluster(config, dataset)
    plan = step_plan(config.arm)
    costs, facts = [], []
    for step in range(config.steps):
        batch = _global_batch(config, dataset, step)
        costs.append(step_costs(config, hardware, batch))
        facts.append(
            StepFacts(
                step=step,
                requests=batch.uih.size,
                labels=int(batch.candidates.sum()),
                uih_tokens=int(batch.uih.sum()),
                sparsity_pct=sparsity_pct(batch.uih),
            )
        )
        progress(step + 1)
    return RunResult(
        timeline=to_timeline(plan, place(plan, costs), costs, run_id=run_id, transport=TRANSPORT),
        facts=facts,
        hardware={"cluster": hardware.name, "gpu": hardware.gpu, "gpus": str(config.gpus)},
        notes=tuple(str(assumption) for assumption in ASSUMPTIONS),
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


def _global_batch(config: RunConfig, dataset: PreparedDataset, step: int) -> GlobalBatch:
    rows = dataset.global_rows(step, config.global_batch)
    uih = np.asarray(dataset.uih_lengths(rows, config.max_uih), dtype=np.int64)
    candidates = np.asarray(dataset.candidate_counts(rows), dtype=np.int64)
    features = dataset.manifest.features
    return GlobalBatch(
        uih=uih,
        candidates=candidates,
        origin=np.arange(uih.size, dtype=np.int64) % config.gpus,
        rank=assign(config.arm.partition, uih, config.gpus, candidates_S=candidates, balance=config.arm.balance),
        uih_features=len(features),
        candidate_features=sum(feature.of_candidate for feature in features),
    )
