"""Without this, arms that are measured side by side could disturb each other: batches mixed up between them, or the
time in which one stands still counted as the other's idle time.

Not covered: whether the ratio of arms is steadier than with runs one after another.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from repro.comm.groups import Groups
from repro.device import Device
from repro.execution.measured import BLOCK_STEPS, train_side_by_side
from repro.execution.under_way import RunUnderWay
from repro.pipeline.train_step import Training, train
from repro.timeline.ledger import build_ledger
from repro.timeline.recorder import Recorder
from repro.timeline.schema import Span, Timeline
from tests.distributed.ranks import run_ranks
from tests.distributed.test_recorded_step import BALANCE, CONFIG
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS = 2 * BLOCK_STEPS + 3
SIDE = replace(CONFIG, steps=STEPS)


def _both(groups: Groups, device: Device) -> list[tuple[list[Any], list[Span]]]:
    data = InMemoryRequests(STEPS * 16)
    trainings = [
        Training(replace(SIDE, arm=arm), data, device, groups, Recorder(device, rank=groups.rank, transport="gloo"))
        for arm in (CONFIG.arm, BALANCE)
    ]
    train_side_by_side([RunUnderWay(one, device, groups) for one in trainings], STEPS, lambda: None)
    return [(training.outcome().steps, training.recorder.spans()) for training in trainings]


def _alone(groups: Groups, device: Device, arm: Any) -> list[Any]:
    recorder = Recorder(device, rank=groups.rank, transport="gloo")
    return train(replace(SIDE, arm=arm), InMemoryRequests(STEPS * 16), device, groups, recorder).steps


def test_side_by_side_trains_and_times_each_arm_as_if_alone() -> None:
    ranks = run_ranks(_both, world=2)
    for index, arm in enumerate((CONFIG.arm, BALANCE)):
        alone = run_ranks(_alone, arm, world=2)
        assert [rank[index][0] for rank in ranks] == alone
        spans = [span for rank in ranks for span in rank[index][1]]
        ledger = build_ledger(Timeline(spans, run="side", mode="measured")).after_warmup(3)
        assert ledger.steps.tolist() == list(range(3, STEPS))
        # The other arm's block would be about ten steps of idle time in the first step of a block.
        first_of_block = ledger.part("other_idle")[BLOCK_STEPS - 3 :: BLOCK_STEPS]
        assert (first_of_block.max(axis=1) < 3 * ledger.window_ns.mean()).all()
