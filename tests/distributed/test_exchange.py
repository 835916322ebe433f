"""Without this, the exchange could lose, double or mix up samples, strand a rank whose data ends first, or hang when a
rank dies. Real gloo groups; ranks that really exit and really sleep.

Not covered: what training does with the samples (test_balance_equals_torchrec) and timing.
"""

from __future__ import annotations

import datetime
import os
import time
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import repro.comm.faults
from repro.balance.exchange import BalancedExchange, EndPolicy
from repro.balance.partition import fbs
from repro.comm.groups import Groups
from repro.comm.traced import traced_collectives
from repro.data.dataset import RequestBlock
from repro.device import Device
from repro.errors import InputError, RunError
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

CAP = 40
FIELDS = ("request_id", "request_time", "uih_lengths", "candidate_counts", "uih_time", "label")


def _same(left: RequestBlock, right: RequestBlock) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    for name in ("uih", "candidate"):
        assert getattr(left, name).keys() == getattr(right, name).keys()
        for feature, column in getattr(left, name).items():
            np.testing.assert_array_equal(column, getattr(right, name)[feature])


def _exchange(groups: Groups, device: Device, capacity: int, at_end: EndPolicy = "drop") -> BalancedExchange:
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    return BalancedExchange("fbs", groups.balance, recorder, capacity=capacity, at_end=at_end)


def _every_field_arrives(groups: Groups, device: Device) -> None:
    """What a rank gets is what reading its share from the data set would give, in global-batch order."""
    data = InMemoryRequests(400, seed=3)
    exchange = _exchange(groups, device, 20)
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    with traced_collectives(recorder):
        for t in range(3):
            rows = data.global_rows(t, 20 * groups.world)
            share = exchange(data.read(rows[groups.rank :: groups.world], CAP))
            assert share is not None
            lengths = np.minimum(data.lengths[rows], CAP)
            _same(share, data.read(rows[fbs(lengths, groups.world) == groups.rank], CAP))


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_every_field_of_every_sample_arrives(world: int) -> None:
    run_ranks(_every_field_arrives, world=world)


def _ends(groups: Groups, device: Device, at_end: EndPolicy) -> list[list[int]]:
    """Rank r's reader delivers 1 + 2r batches of r + 1 requests."""
    data = InMemoryRequests(200, seed=1)
    exchange = _exchange(groups, device, 4, at_end)
    seen = []
    first = 50 * groups.rank
    for batch in range(100):
        rows = np.arange(first, first + groups.rank + 1) + batch * (groups.rank + 1)
        block = data.read(rows, CAP) if batch < 1 + 2 * groups.rank else None
        share = exchange(block)
        if share is None:
            return seen
        _same(share, data.read(share.request_id, CAP))
        seen.append(share.request_id.tolist())
    raise AssertionError("never ended")


def test_with_drop_all_ranks_end_with_the_first() -> None:
    ranks = run_ranks(_ends, "drop", world=3)
    assert [len(seen) for seen in ranks] == [1, 1, 1]
    assert sorted(request for seen in ranks for request in seen[0]) == [0, 50, 51, 100, 101, 102]


def test_with_drain_every_sample_is_trained_once_and_all_ranks_end_together() -> None:
    ranks = run_ranks(_ends, "drain", world=3)
    assert [len(seen) for seen in ranks] == [5, 5, 5]
    trained = sorted(request for seen in ranks for batch in seen for request in batch)
    assert trained == [0, *range(50, 56), *range(100, 115)]
    last = [len(seen[-1]) for seen in ranks]
    assert sum(last) == 3 and max(last) == 1, "what is left is dealt to all ranks"


def _out_of_step(groups: Groups, device: Device) -> str:
    data = InMemoryRequests(10)
    exchange = _exchange(groups, device, 4)
    if groups.rank == 1:
        exchange._sequence = 6
    with pytest.raises(RunError) as raised:
        exchange(data.read(np.arange(4), CAP))
    return str(raised.value)


def test_ranks_out_of_step_are_an_error_that_names_them() -> None:
    messages = run_ranks(_out_of_step, world=2)
    assert "rank 0 is at batch 1, rank 1 at 7" in messages[0]
    assert "rank 1 is at batch 7, rank 0 at 1" in messages[1]


def _too_many(groups: Groups, device: Device) -> str:
    with pytest.raises(RunError) as raised:
        _exchange(groups, device, 4).start(InMemoryRequests(10).read(np.arange(5), CAP))
    return str(raised.value)


def test_more_requests_than_the_capacity() -> None:
    assert "5 requests exceeds the capacity 4" in run_ranks(_too_many, world=1)[0]


def _unknown_policy(groups: Groups, device: Device) -> str:
    with pytest.raises(InputError) as raised:
        policy: Any = "stop"
        _exchange(groups, device, 4, policy)
    return str(raised.value)


def test_an_unknown_end_policy() -> None:
    assert "'stop' is not one of" in run_ranks(_unknown_policy, world=1)[0]


TIMEOUT_SECONDS = 4


def _lost_rank(groups: Groups, device: Device, stage: int, how: str) -> tuple[str, float]:
    """Rank 2 leaves after `stage` stages of the second batch. Others say who it was, within the timeout."""
    repro.comm.faults.PATIENCE_SECONDS = 1.0
    data = InMemoryRequests(100, seed=2)
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))
    exchange = BalancedExchange("fbs", group, recorder, capacity=4)
    exchange(data.read(np.arange(4) + 10 * groups.rank, CAP))
    if groups.rank == 2:
        if stage > 0:
            exchange.start(data.read(np.arange(4), CAP))
        if stage > 1:
            exchange.advance()
        if how == "dies":
            os._exit(0)
        time.sleep(2 * TIMEOUT_SECONDS + 2)
        return "", 0.0
    began = time.monotonic()
    with pytest.raises(RunError) as raised:
        exchange(data.read(np.arange(4) + 10 * groups.rank, CAP))
    seconds = time.monotonic() - began
    if how == "stalls" or groups.rank == 0:  # whoever leaves first is blamed, and with rank 0 goes these tests' store
        time.sleep(max(0.0, 2 * TIMEOUT_SECONDS + 2 - seconds))
    return str(raised.value), seconds


def test_a_rank_that_dies_is_named() -> None:
    """Which stage it leaves unfinished depends on what gloo had sent by then."""
    for message, seconds in run_ranks(_lost_rank, 2, "dies", world=3)[:2]:
        assert message.startswith("balancing exchange, ") and "of batch 2: rank 2 died or stalled" in message
        assert seconds < TIMEOUT_SECONDS


@pytest.mark.parametrize(
    ("stage", "op"), [(0, "lengths_all_gather"), (1, "candidates_all_gather"), (2, "samples_all_to_all")]
)
def test_a_rank_that_stalls_is_named_with_its_stage(stage: int, op: str) -> None:
    for message, seconds in run_ranks(_lost_rank, stage, "stalls", world=3)[:2]:
        assert f"{op} of batch 2: rank 2 died or stalled" in message
        assert seconds < TIMEOUT_SECONDS + 3
