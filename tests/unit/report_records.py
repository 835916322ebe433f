"""Small run records for the tests of tables, figures, report, notebooks and sinks.

They are test inputs, made by a toy schedule, but they pass through the real Timeline, ledger, `summarize` and
`write_record`. Rank r's dense time follows the sum of its samples' lengths, so `balance` really has fewer stragglers.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from repro.config import Arm, Mode, ModelConfig, RunConfig
from repro.execution.base import RunResult, StepFacts, sparsity_pct, summarize
from repro.pipeline.ops import Op
from repro.pipeline.step_plan import step_plan
from repro.timeline.schema import NO_COLLECTIVE, Span, Timeline
from repro.tracking.jsonl import write_steps
from repro.tracking.record import SPANS, Provenance, RunRecord, write_record

TORCHREC = Arm(name="torchrec")
BALANCE = Arm(name="balance", partition="fbs")
STEPS = 6


def config(
    *,
    arm: Arm = TORCHREC,
    mode: Mode = "simulated",
    experiment: str = "ladder",
    gpus: int = 8,
    max_uih: int = 2000,
    steps: int = STEPS,
    seed: int = 0,
) -> RunConfig:
    """A config of the small runs."""
    return RunConfig(
        experiment=experiment,
        figure="",
        mode=mode,
        arm=arm,
        dataset="synthetic",
        cluster="h100_paper" if mode == "simulated" else "workstation_cpu",
        gpus=gpus,
        batch=4,
        max_uih=max_uih,
        steps=steps,
        warmup_steps=2,
        seed=seed,
        model=ModelConfig(name="tiny", layers=2, dim=32, heads=2),
    )


def write_run(results: Path, run: RunConfig, result: RunResult | None = None) -> RunRecord:
    """Make a run of `run`, unless its result is there, and write it under `results`."""
    name = f"{run.arm.name}-{run.mode}-{run.gpus}-{run.batch}-{run.max_uih}-{run.seed}"
    folder = results / "runs" / run.experiment / name
    folder.mkdir(parents=True)
    if result is None:
        timeline, facts = _toy_run(run, name)
        result = RunResult(timeline=timeline, facts=facts, hardware={"cpu": "toy"})
    metrics, rows = summarize(run, result)
    record = RunRecord(
        run_id=name,
        config=run,
        provenance=Provenance(
            fingerprint=run.fingerprint(),
            dataset_fingerprint="d" * 64,
            commit="0123456789abcdef0123456789abcdef01234567",
            dirty=False,
            versions={"torch": "2.13.0", "torchrec": "1.8.0"},
            hardware={"cpu": "toy", "cores": "2"},
            command=f"repro run {run.experiment}",
            started="2026-01-02T03:04:05+00:00",
            seconds=1.5,
        ),
        metrics=metrics,
        notes=("made by a test",),
        folder=folder,
    )
    result.timeline.write(folder / SPANS)
    write_steps(rows, folder)
    write_record(record, folder)
    return record


def write_small_results(results: Path) -> list[RunRecord]:
    """Both arms: measured on 2 ranks, simulated on 8 and 64, and a straggler sweep with the paper's setting."""
    runs = [
        config(arm=arm, mode=mode, gpus=gpus)
        for mode, gpus in (("measured", 2), ("simulated", 8), ("simulated", 64))
        for arm in (TORCHREC, BALANCE)
    ]
    runs += [
        config(arm=arm, experiment="fig08a", gpus=64, max_uih=max_uih)
        for max_uih in (1000, 8000, 21000)
        for arm in (TORCHREC, BALANCE)
    ]
    return [write_run(results, run) for run in runs]


def drop_metric(record: RunRecord, name: str) -> None:
    """Remove one metric from a record on disk."""
    path = record.folder / "record.json"
    raw = json.loads(path.read_text())
    del raw["metrics"][name]
    path.write_text(json.dumps(raw))


def _toy_run(run: RunConfig, name: str) -> tuple[Timeline, list[StepFacts]]:
    random = np.random.default_rng(run.seed)
    spans: list[Span] = []
    facts = []
    now_R = np.zeros(run.gpus, dtype=np.int64)
    for step in range(run.steps):
        lengths_S = np.minimum(random.lognormal(6.0, 1.3, run.global_batch), run.max_uih).astype(np.int64) + 1
        order_S = np.arange(run.global_batch)
        if run.arm.partition == "fbs":
            by_length = np.argsort(-lengths_S, kind="stable").reshape(run.batch, run.gpus)
            by_length[1::2] = by_length[1::2, ::-1]
            order_S = by_length.reshape(-1)
        tokens_R = lengths_S[order_S].reshape(run.batch, run.gpus).sum(axis=0)
        now_R = _toy_step(run, step, tokens_R, now_R, spans)
        trained = run.mode == "measured"
        facts.append(
            StepFacts(
                step=step,
                requests=run.global_batch,
                labels=run.global_batch,
                uih_tokens=int(lengths_S.sum()),
                sparsity_pct=sparsity_pct(lengths_S),
                loss_sum=run.global_batch * (0.69 - 0.01 * step) if trained else None,
                positives=run.global_batch // 2 if trained else None,
            )
        )
    return Timeline(spans, run=name, mode=run.mode), facts


def _toy_step(run: RunConfig, step: int, tokens_R: np.ndarray, now_R: np.ndarray, spans: list[Span]) -> np.ndarray:
    for number, planned in enumerate(step_plan(run.arm)):
        op = planned.op
        duration_R = np.full(run.gpus, 20_000, dtype=np.int64)
        if op in (Op.DENSE_FORWARD, Op.DENSE_BACKWARD):
            duration_R = tokens_R * (400 if op is Op.DENSE_FORWARD else 800) + 50_000
        end_R = now_R + duration_R
        collective = NO_COLLECTIVE
        if op.category == "communication":
            end_R = np.full(run.gpus, now_R.max() + 60_000)
            collective = number
        for rank in range(run.gpus):
            spans.append(
                Span(
                    step=step,
                    rank=rank,
                    lane=op.lane,
                    op=op.label,
                    category=op.category,
                    start_ns=int(now_R[rank]),
                    duration_ns=int(end_R[rank] - now_R[rank]),
                    collective=collective,
                )
            )
        now_R = end_R
    return now_R
