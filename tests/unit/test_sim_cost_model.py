"""Without this the bytes of the exchanges, or which rank is charged for which sample, could be wrong while every single
cost function is right. Not covered: the cost functions themselves (test_sim_compute, test_sim_communication) and the
prioritized exchange (test_sim_prioritized)."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from repro.config import Arm, Exchange, ModelConfig, RunConfig
from repro.execution.simulated import communication, compute
from repro.execution.simulated.clusters import H100_PAPER
from repro.execution.simulated.cost_model import GlobalBatch, step_costs
from repro.execution.simulated.prioritized_costs import StepRows
from repro.execution.simulated.rows import RowTraffic
from repro.pipeline.ops import Op
from repro.pipeline.step_plan import step_plan

BALANCE = Arm(name="balance", partition="fbs")


def config_of(gpus: int) -> RunConfig:
    return RunConfig(
        experiment="e", figure="", mode="simulated", arm=BALANCE, dataset="d", cluster="h100_paper", gpus=gpus,
        batch=2, max_uih=10**6, steps=3, model=ModelConfig(name="m", layers=2, dim=512, heads=4),
    )  # fmt: skip


def batch_of(uih: list[int], candidates: list[int], rank: list[int], world: int) -> GlobalBatch:
    return GlobalBatch(
        uih=np.array(uih),
        candidates=np.array(candidates),
        origin=np.arange(len(uih)) % world,
        rank=np.array(rank),
        uih_features=2,
        candidate_features=1,
        distinct_rows=50_000.0,
    )


@pytest.fixture
def batch() -> GlobalBatch:
    """Two ranks; samples 0 and 3 change rank."""
    return batch_of([90000, 10000, 80000, 20000], [3, 1, 2, 4], rank=[1, 1, 0, 0], world=2)


def test_every_op_of_every_arm_has_a_cost(batch):
    traffic = RowTraffic(**dict.fromkeys(RowTraffic.__dataclass_fields__, np.array([7.0, 9.0])))
    rows = StepRows(now=traffic, following=traffic, announced=traffic, lookups=np.array([10.0, 20.0]))
    for partition, exchange in product(("identity", "fbs"), get_args(Exchange)):
        arm = Arm(name="a", partition=partition, exchange=exchange)
        costs = step_costs(replace(config_of(2), arm=arm), H100_PAPER, batch, rows)
        for planned in step_plan(arm):
            duration = costs.duration_ns[planned.op]
            assert (duration.dtype, duration.shape) == (np.dtype(np.int64), (2,))
            assert (duration > 0).all()
            if planned.op.category == "communication":
                assert costs.bytes[planned.op].shape == (2,)


def test_bytes_of_the_embedding_exchange(batch):
    """An event carries two ids, a candidate one; rank 0 trains samples 2 and 3, rank 1 samples 0 and 1. Half of
    everything stays where it is, and an AllReduce passes every byte twice."""
    sent = step_costs(config_of(2), H100_PAPER, batch).bytes
    ids = [2 * (80000 + 20000) + 2 + 4, 2 * (90000 + 10000) + 3 + 1]
    assert sent[Op.ID_ALL_TO_ALL].tolist() == [4 * n for n in ids]
    assert sent[Op.GRADIENT_ALL_TO_ALL].tolist() == [512 * 2 * n for n in ids]
    assert sent[Op.EMBEDDING_ALL_TO_ALL].tolist() == [512 * 2 * sum(ids) // 2] * 2
    assert sent[Op.ID_SPLITS_ALL_TO_ALL].tolist() == [3 * 8] * 2
    assert sent[Op.DENSE_ALL_REDUCE].tolist() == [4 * compute.dense_parameters(config_of(2).model)] * 2


def test_bytes_of_balancing_are_those_of_samples_that_move(batch):
    sent = step_costs(config_of(2), H100_PAPER, batch).bytes
    assert sent[Op.LENGTHS_ALL_GATHER].tolist() == [32, 32]
    assert sent[Op.CANDIDATES_ALL_GATHER].tolist() == [16, 16]
    words = [4 + (2 + 2) * 90000 + (1 + 1) * 3, 4 + (2 + 2) * 20000 + (1 + 1) * 4]
    assert sent[Op.SAMPLES_ALL_TO_ALL].tolist() == [4 * words[0], 4 * words[1]]


def test_nothing_moves_when_every_sample_stays():
    still = batch_of([5, 6, 7, 8], [1, 1, 1, 1], rank=[0, 1, 0, 1], world=2)
    costs = step_costs(config_of(2), H100_PAPER, still)
    assert costs.bytes[Op.SAMPLES_ALL_TO_ALL].tolist() == [0, 0]
    assert costs.duration_ns[Op.SAMPLES_ALL_TO_ALL].tolist() == [42000, 42000]


def test_a_packed_sample_is_as_large_as_the_real_one():
    from repro.balance.packing import WORD, packed_words  # here, as the other tests need no packing

    batch = batch_of([100, 0, 7], [3, 1, 16], rank=[0, 0, 0], world=1)
    block = SimpleNamespace(uih={"item": None, "action": None}, candidate={"item": None})
    sizes = np.stack([batch.uih, batch.candidates], axis=1)
    assert batch.packed_bytes().tolist() == [packed_words(sizes[i : i + 1], block) * WORD.itemsize for i in range(3)]


def test_the_rank_with_most_ids_sets_the_pace_of_the_exchange(batch):
    costs = step_costs(config_of(2), H100_PAPER, batch)
    buffer = (2 * 100000 + 6) * 512 * 4
    expected = communication.all_to_all(H100_PAPER, 2, nic_bytes=0, nvlink_bytes=buffer / 2)
    assert costs.duration_ns[Op.EMBEDDING_ALL_TO_ALL].tolist() == [round(expected * 1e9)] * 2


def test_moved_samples_cross_the_network_only_between_nodes():
    """16 ranks, 8 a node. Sample 0 goes to rank 1 (same node) or to rank 8 (the other one)."""
    uih = [10**6] + [10] * 15
    stay = list(range(16))
    near = step_costs(config_of(16), H100_PAPER, batch_of(uih, [1] * 16, [1, *stay[1:]], 16))
    far = step_costs(config_of(16), H100_PAPER, batch_of(uih, [1] * 16, [8, *stay[1:]], 16))
    sample = 4 * (4 + 4 * 10**6 + 2)
    assert near.duration_ns[Op.SAMPLES_ALL_TO_ALL][0] == round(1e9 * (118e-6 + sample / 240e9))
    assert far.duration_ns[Op.SAMPLES_ALL_TO_ALL][0] == round(1e9 * (118e-6 + sample / (0.81 * 23.5e9)))


def test_a_rank_that_receives_most_sets_the_pace_of_balancing():
    """Four ranks of one node: three of them send a sample each to rank 3."""
    costs = step_costs(config_of(4), H100_PAPER, batch_of([1000] * 4, [1] * 4, [3, 3, 3, 3], 4))
    sample = 4 * (4 + 4 * 1000 + 2)
    assert costs.duration_ns[Op.SAMPLES_ALL_TO_ALL].tolist() == [round(1e9 * (42e-6 + 3 * sample / 240e9))] * 4


def test_compute_is_charged_to_the_rank_that_trains(batch):
    costs = step_costs(config_of(2), H100_PAPER, batch)
    forward, backward = compute.dense(
        config_of(2).model, H100_PAPER, batch.uih, batch.candidates, np.array([1, 1, 0, 0]), 2
    )
    assert costs.duration_ns[Op.DENSE_FORWARD].tolist() == np.rint(forward * 1e9).tolist()
    assert costs.duration_ns[Op.DENSE_BACKWARD].tolist() == np.rint(backward * 1e9).tolist()


def test_owners_share_lookups_evenly(batch):
    costs = step_costs(config_of(2), H100_PAPER, batch)
    model, rows, distinct = config_of(2).model, np.array([batch.ids().sum() / 2]), np.array([25_000.0])
    lookup = compute.lookup(model, H100_PAPER, rows)[0]
    assert costs.duration_ns[Op.LOOKUP].tolist() == [round(1e9 * lookup)] * 2
    update = compute.row_update(model, H100_PAPER, rows, distinct, "rowwise_adagrad")[0]
    assert costs.duration_ns[Op.ROW_UPDATE].tolist() == [round(1e9 * update)] * 2


def test_host_and_optimizer_costs(batch):
    costs = step_costs(config_of(2), H100_PAPER, batch).duration_ns
    assert costs[Op.DATA_LOAD].tolist() == [6_000_000] * 2
    assert costs[Op.PARTITION].tolist() == [4 * 100 + 2 * 10_000] * 2
    splits = communication.all_to_all(H100_PAPER, 2, nic_bytes=0, nvlink_bytes=2 * 3 * 8 / 2) + 10e-6
    assert costs[Op.ID_SPLITS_ALL_TO_ALL].tolist() == [round(1e9 * splits)] * 2
