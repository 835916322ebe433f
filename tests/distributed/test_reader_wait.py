"""Without this, a reader that cannot keep up would make training slow and the ledger would blame something else. A slow
reader must show as host wait, a reader that keeps up must not, and the steps must be the same.

Not covered: real disks (benchmarks/read.py measures the reader).
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from repro.comm.groups import Groups
from repro.config import Arm, ModelConfig, RunConfig
from repro.data.dataset import RequestBlock
from repro.device import Device
from repro.pipeline.train_step import RankStep, train
from repro.timeline.ledger import build_ledger
from repro.timeline.recorder import Recorder
from repro.timeline.schema import Span, Timeline
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS = 8
SLOW_MS = 150
CONFIG = RunConfig(
    experiment="test", figure="", mode="measured", arm=Arm(name="balance", partition="fbs"), dataset="in-memory",
    cluster="workstation_cpu", gpus=2, batch=8, max_uih=40, steps=STEPS,
    model=ModelConfig(name="test", layers=1, dim=8, heads=1),
)  # fmt: skip


class SlowRequests(InMemoryRequests):
    """Its disk takes `delay` seconds a read."""

    delay = 0.0

    def read(self, rows: np.ndarray, max_uih: int) -> RequestBlock:
        time.sleep(self.delay)
        return super().read(rows, max_uih)


def _train(groups: Groups, device: Device, delay: float) -> tuple[list[Span], list[RankStep]]:
    requests = SlowRequests(STEPS * 16)
    requests.delay = delay
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    trained = train(CONFIG, requests, device, groups, recorder)
    return recorder.spans(), trained.steps


def test_a_slow_reader_shows_as_host_wait() -> None:
    waits, losses = {}, {}
    for delay_ms in (0, SLOW_MS):
        ranks = run_ranks(_train, delay_ms / 1000, world=2)
        ledger = build_ledger(Timeline([span for spans, _ in ranks for span in spans], run="r", mode="measured"))
        # Without the first steps, which fill the buffer, and the last two, which have nothing left to read.
        waits[delay_ms] = float(np.median(ledger.part("host_wait")[2:-2].max(axis=1))) / 1e6
        losses[delay_ms] = [step.loss_sum for _, steps in ranks for step in steps]
    assert waits[SLOW_MS] > 0.6 * SLOW_MS
    assert waits[0] < 0.2 * SLOW_MS
    assert losses[0] == losses[SLOW_MS]
