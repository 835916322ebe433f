"""Without this, another transport could change what is trained, or leave threads and connections behind a run.

Not covered: time (a run on one machine says little about it).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from experiments.presets import BALANCE_PRIORITY, FREESCALE, FREESCALE_HIDDEN
from repro.comm.groups import Groups
from repro.config import Arm, ModelConfig, RunConfig
from repro.device import Device
from repro.errors import InputError
from repro.pipeline.instrument import data_parallel
from repro.pipeline.train_step import Training
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS = 12
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="measured",
    arm=BALANCE_PRIORITY,
    dataset="in-memory",
    cluster="workstation_cpu",
    gpus=2,
    batch=8,
    max_uih=40,
    steps=STEPS,
    model=ModelConfig(name="test", layers=1, dim=8, heads=2, dense_dtype="float32"),
)


def _train(groups: Groups, device: Device) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    for arm in (BALANCE_PRIORITY, FREESCALE, FREESCALE_HIDDEN):
        config = replace(CONFIG, gpus=groups.world, arm=arm)
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)
        training = Training(config, InMemoryRequests(STEPS * 8 * groups.world), device, groups, recorder)  # type: ignore[arg-type]
        training.run(STEPS)
        done = training.outcome()
        dense = data_parallel(done.built.model).module.dense
        outcome[arm.name] = {
            "losses": [step.loss_sum for step in done.steps],
            "tables": [(table, first, rows.clone()) for table, first, rows in done.built.local_rows()],
            "dense": [value.detach().clone() for value in dense.parameters()],
            "transports": {span.op: span.transport for span in recorder.spans() if span.transport},
            "threads": sum("host_ring" in thread.name for thread in threading.enumerate()),
        }
    return outcome


@pytest.mark.parametrize("world", [2, 3])
def test_freescale_trains_the_bits_of_balance_and_priority(world: int) -> None:
    for rank in run_ranks(_train, world=world):
        plain = rank["balance+priority"]
        assert set(plain["transports"].values()) == {"gloo"}
        awaited = {"collision_gradient_all_to_all", "collision_embedding_all_to_all"}
        for arm, on_group in (("freescale", set()), ("freescale_hidden", awaited)):
            ring = rank[arm]
            assert ring["losses"] == plain["losses"]
            for (name, first, rows), (other, at, theirs) in zip(plain["tables"], ring["tables"], strict=True):
                assert (name, first) == (other, at) and torch.equal(rows, theirs)
            assert all(torch.equal(*pair) for pair in zip(plain["dense"], ring["dense"], strict=True))
            moved = {op for op, transport in ring["transports"].items() if transport == "host_ring"}
            behind = {"samples_all_to_all", "lengths_all_gather", "id_all_to_all", "exclusive_embedding_all_to_all"}
            assert behind <= moved
            assert set(ring["transports"]) - moved == {"dense_all_reduce"} | on_group
            assert ring["threads"] == 0


def test_a_transport_needs_the_prioritized_exchange() -> None:
    """On real ranks: TorchRec's collectives cannot be redirected, only simulated elsewhere."""
    wrong = Arm(name="wrong", transport="host_ring")
    with pytest.raises(InputError, match=r"arm\.transport: host_ring needs exchange prioritized or stale"):
        replace(CONFIG, arm=wrong)
    assert replace(CONFIG, mode="simulated", arm=wrong).arm == wrong
