"""Without this, the measured ledger could account for a step that never ran like that: an op missing, a collective
labelled as another, a rank that waits counted as computing. Real TorchRec on real ranks is checked against the step
plan that the simulator walks.

Not covered: GPU timing (events), which needs GPUs.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from repro.balance.partition import fbs
from repro.comm.groups import Groups
from repro.config import Arm, ModelConfig, RunConfig
from repro.device import Device
from repro.pipeline.ops import OP_BY_LABEL, Op
from repro.pipeline.step_plan import step_plan
from repro.pipeline.train_step import train
from repro.timeline.ledger import bubble_metrics, build_ledger
from repro.timeline.recorder import Recorder
from repro.timeline.schema import NO_COLLECTIVE, Span, Timeline
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS = 7
SLEEP_MS = 200
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="measured",
    arm=Arm(name="torchrec"),
    dataset="in-memory",
    cluster="workstation_cpu",
    gpus=2,
    batch=8,
    max_uih=40,
    steps=STEPS,
    model=ModelConfig(name="test", layers=1, dim=8, heads=1),
)
BALANCE = Arm(name="balance", partition="fbs")


def _spans(groups: Groups, device: Device, config: RunConfig) -> list[Span]:
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    train(config, InMemoryRequests(STEPS * 16), device, groups, recorder)
    return recorder.spans()


@pytest.fixture(scope="module", params=["torchrec", "balance"])
def recorded(request: pytest.FixtureRequest) -> tuple[Arm, list[Span]]:
    arm = BALANCE if request.param == "balance" else CONFIG.arm
    ranks = run_ranks(_spans, replace(CONFIG, arm=arm), world=2)
    return arm, [span for rank in ranks for span in rank]


def _inner_steps(spans: list[Span]) -> list[tuple[int, int, list[Span]]]:
    """Steps in which exactly one batch is under exchange: batch t travels in step t-2, and the first step has three."""
    return [
        (rank, step, sorted((s for s in spans if (s.rank, s.step) == (rank, step)), key=lambda s: s.start_ns))
        for rank in (0, 1)
        for step in range(1, STEPS - 2)
    ]


def test_a_step_has_exactly_the_planned_ops(recorded: tuple[Arm, list[Span]]) -> None:
    arm, spans = recorded
    planned = {planned.op for planned in step_plan(arm)}
    for _rank, _step, ops in _inner_steps(spans):
        assert {OP_BY_LABEL[span.op] for span in ops} == planned


def test_ops_start_after_what_the_plan_says(recorded: tuple[Arm, list[Span]]) -> None:
    """An op may be cut into several spans (it waits in between), so the first start follows the dependency's first."""
    arm, spans = recorded
    for rank, step, ops in _inner_steps(spans):
        first = {op: min(s.start_ns for s in ops if s.op == op.label) for op in {OP_BY_LABEL[s.op] for s in ops}}
        for planned in step_plan(arm):
            for after in planned.after:
                if (
                    after.step_offset == 0 and planned.op is not Op.LOOKUP
                ):  # bucketing ids counts as lookup, and is earlier
                    assert first[after.op] <= first[planned.op], (rank, step, after.op, planned.op)


def test_collectives_have_the_same_numbers_on_both_ranks(recorded: tuple[Arm, list[Span]]) -> None:
    _arm, spans = recorded
    numbers = [
        sorted((s.step, s.op, s.collective) for s in spans if s.rank == rank and s.collective != NO_COLLECTIVE)
        for rank in (0, 1)
    ]
    assert numbers[0] == numbers[1]
    assert all((span.collective != NO_COLLECTIVE) == (span.lane == "comm") for span in spans)


def test_embedding_bytes_are_those_of_the_rows_that_travel(recorded: tuple[Arm, list[Span]]) -> None:
    """Forward sends the rows that the other rank asked for; backward returns their gradients the other way round."""
    _arm, spans = recorded
    for step in range(1, STEPS):
        sent = {
            (op, rank): sum(s.bytes for s in spans if (s.op, s.rank, s.step) == (op.label, rank, step))
            for op in (Op.EMBEDDING_ALL_TO_ALL, Op.GRADIENT_ALL_TO_ALL)
            for rank in (0, 1)
        }
        assert sent[Op.EMBEDDING_ALL_TO_ALL, 0] == sent[Op.GRADIENT_ALL_TO_ALL, 1] > 0
        assert sent[Op.EMBEDDING_ALL_TO_ALL, 1] == sent[Op.GRADIENT_ALL_TO_ALL, 0] > 0


def test_exchanged_sample_bytes_are_those_of_the_samples_that_move(recorded: tuple[Arm, list[Span]]) -> None:
    arm, spans = recorded
    dataset = InMemoryRequests(STEPS * 16)
    if arm.partition == "identity":
        assert not [s for s in spans if s.op == Op.SAMPLES_ALL_TO_ALL.label]
        return
    for t in range(3, STEPS):  # batch t travels in step t-2
        rows = dataset.global_rows(t, 16)
        lengths, candidates = dataset.lengths[rows], dataset.candidates[rows]
        reader, trainer = np.arange(16) % 2, fbs(lengths, 2)
        for rank in (0, 1):
            moves = (reader == rank) & (trainer != rank)
            words = 4 * moves.sum() + 4 * lengths[moves].sum() + 2 * candidates[moves].sum()
            span = next(s for s in spans if (s.op, s.rank, s.step) == (Op.SAMPLES_ALL_TO_ALL.label, rank, t - 2))
            assert span.bytes == 4 * words


def test_compute_spans_of_a_rank_never_overlap(recorded: tuple[Arm, list[Span]]) -> None:
    _arm, spans = recorded
    for rank in (0, 1):
        main = sorted((s for s in spans if s.rank == rank and s.lane != "comm"), key=lambda s: s.start_ns)
        for earlier, later in itertools.pairwise(main):
            assert earlier.start_ns + earlier.duration_ns <= later.start_ns


def _spans_with_a_slow_rank(groups: Groups, device: Device, slow_rank: int) -> list[Span]:
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    dataset: Any = InMemoryRequests(STEPS * 16)
    if groups.rank == slow_rank:
        read = dataset.read

        def slow_read(rows: np.ndarray, max_uih: int) -> Any:
            time.sleep(SLEEP_MS / 1000)
            return read(rows, max_uih)

        dataset.read = slow_read
    train(CONFIG, dataset, device, groups, recorder)
    return recorder.spans()


def test_waiting_for_a_slow_rank_is_straggler_wait_on_the_other() -> None:
    """Rank 1 sleeps in every step's data loading: its own ledger says host, rank 0's says straggler."""
    ranks = run_ranks(_spans_with_a_slow_rank, 1, world=2)
    timeline = Timeline([span for rank in ranks for span in rank], run="slow", mode="measured")
    ledger = build_ledger(timeline).after_warmup(3)  # in step 2 DDP rebuilds its buckets, a collective of its own
    inner = slice(0, STEPS - 5)  # nothing is read in the last two steps
    straggler_ms = ledger.part("straggler_wait")[inner].mean(axis=0) / 1e6
    host_ms = ledger.part("host_wait")[inner].mean(axis=0) / 1e6
    assert straggler_ms[0] > 0.7 * SLEEP_MS and straggler_ms[1] < 0.3 * SLEEP_MS
    # A step hides a little of the read; see test_reader_wait.py.
    assert host_ms[1] > 0.7 * SLEEP_MS and host_ms[0] < 0.3 * SLEEP_MS
    assert bubble_metrics(ledger, requests_per_step=16)["straggler_pct"].value > 20
