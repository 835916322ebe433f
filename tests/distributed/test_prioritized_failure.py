"""Without this, a rank that is lost in the prioritized exchange could leave the others hanging, or with an address and
no name: collectives on three groups and three threads fail at once, and one line must come out.

Ranks really exit and really stall, at each collective in turn. Not covered: the dense AllReduce, which is not part of
the exchange, and NCCL.
"""

from __future__ import annotations

import datetime
import os
import re
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import repro.comm.faults
from repro.comm.groups import Groups
from repro.data.schema import Feature
from repro.device import Device
from repro.embedding.id_exchange import colliding
from repro.embedding.prioritized import LOOKAHEAD, PrioritizedEmbeddings
from repro.errors import RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

TIMEOUT_SECONDS = 3
PATIENCE = 1.0
LOST, LOST_AT = 2, 3
"""Rank and step."""
STEPS = 8
OPS_OF_IDS = (Op.ID_SPLITS_ALL_TO_ALL, Op.ID_ALL_TO_ALL, Op.COLLISION_MASK_ALL_TO_ALL)
OPS_OF_ROWS = (
    Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL,
    Op.COLLISION_GRADIENT_ALL_TO_ALL,
    Op.COLLISION_EMBEDDING_ALL_TO_ALL,
    Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL,
)


def _lost(groups: Groups, device: Device, op: Op, how: str) -> tuple[str, float]:
    """Rank 2 leaves before it enters `op` of step 3. What the others say, and after how long."""
    repro.comm.faults.PATIENCE_SECONDS = PATIENCE
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    ids, priority, exclusive = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(3))
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    tables = PrioritizedEmbeddings(
        (Feature(name="item", vocabulary=60, of_candidate=False),),
        4,
        "sgd",
        lambda: 0.1,
        collide=colliding,
        ids=ids,
        priority=priority,
        exclusive=exclusive,
        recorder=recorder,
        device=device.torch_device,
        seed=0,
    )
    if groups.rank == LOST:
        _leave(tables, op, how)
    batches = [
        KeyedJaggedTensor(["uih_item"], torch.arange(step * 4, step * 4 + 8), lengths=torch.tensor([8]))
        for step in range(STEPS)
    ]
    for batch in batches[:LOOKAHEAD]:
        tables.announce(batch)
    dist.barrier()
    began = time.monotonic()
    said = ""
    try:
        for step, batch in enumerate(batches):
            recorder.begin_step(step)
            tables.announce(batches[step + LOOKAHEAD] if step + LOOKAHEAD < STEPS else None)
            tables(batch)["uih_item"].values().sum().backward()
        tables.drain()
    except RunError as error:
        said = str(error)
    seconds = time.monotonic() - began
    tables.close()
    if groups.rank == 0:  # with it goes these tests' store
        time.sleep(PATIENCE + 1)
    return said, seconds


def _leave(tables: PrioritizedEmbeddings, op: Op, how: str) -> None:
    """Have this rank go when it comes to `op` of step 3."""
    owner: Any = tables._id_exchange if op in OPS_OF_IDS else tables
    name = "_all_to_all" if op in OPS_OF_IDS else "_move"
    real = getattr(owner, name)

    def before(*arguments: Any) -> Any:
        if op in arguments and arguments[-1] == LOST_AT:
            if how == "dies":
                os._exit(0)
            time.sleep(2 * TIMEOUT_SECONDS)
        return real(*arguments)

    setattr(owner, name, before)


@pytest.mark.parametrize(
    "op", [Op.ID_SPLITS_ALL_TO_ALL, Op.COLLISION_MASK_ALL_TO_ALL, *OPS_OF_ROWS], ids=lambda op: op.label
)
def test_a_rank_that_stalls_is_named_with_its_stage(op: Op) -> None:
    for message, seconds in run_ranks(_lost, op, "stalls", world=3)[:LOST]:
        where = f"{op.label} of step {LOST_AT}"
        if op is Op.COLLISION_EMBEDDING_ALL_TO_ALL:
            where = f"{op.label} of step {LOST_AT + 1}"  # sent in one step, waited for in the next
        assert message == f"prioritized exchange, {where}: rank {LOST} died or stalled and did not take part"
        assert seconds < TIMEOUT_SECONDS + PATIENCE + 2


@pytest.mark.parametrize(
    "op",
    [Op.ID_ALL_TO_ALL, Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL, Op.COLLISION_GRADIENT_ALL_TO_ALL],
    ids=lambda op: op.label,
)
def test_a_rank_that_dies_is_named(op: Op) -> None:
    """Which stage it leaves unfinished depends on what gloo had sent by then."""
    for message, seconds in run_ranks(_lost, op, "dies", world=3)[:LOST]:
        pattern = rf"prioritized exchange, \w+ of step \d: rank {LOST} died or stalled and did not take part"
        assert re.fullmatch(pattern, message), message
        assert seconds < TIMEOUT_SECONDS
