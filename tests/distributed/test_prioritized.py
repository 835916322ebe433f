"""Without this, prioritized updates could read a row before it is updated, update it twice, or with another step's
learning rate, and every result of technique 2 would be a result about another training run.

Three references: this project's synchronous exchange (bitwise), TorchRec's fused tables (1e-6), and a naive
single-process loop. `stale` must fail the same comparison. Not covered: what is hidden behind what (emulated runs),
CUDA streams.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.comm.groups import Groups
from repro.config import Arm, ModelConfig, OptimizerConfig, RunConfig
from repro.data.schema import Feature
from repro.device import Device
from repro.device.lane import Lane
from repro.embedding.id_exchange import Collide, IdExchange, colliding, everything, nothing
from repro.embedding.prioritized import LOOKAHEAD, PrioritizedEmbeddings
from repro.embedding.row_space import RowSpace
from repro.embedding.tables import initial_rows
from repro.pipeline.instrument import data_parallel
from repro.pipeline.ops import Op
from repro.pipeline.train_step import Training
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

OPTIMIZERS = ("sgd", "rowwise_adagrad")

# The exchange by itself, under random ids

FEATURES = (
    Feature(name="action", vocabulary=5, of_candidate=False),
    Feature(name="item", vocabulary=23, of_candidate=True),
)
KEYS = ("uih_action", "uih_item", "candidate_item")
WIDTH = 4
Case = tuple[int, int, str, int, str]
"""Seed, span, optimizer, steps, collide."""
COLLIDE: dict[str, Collide] = {"prioritized": colliding, "synchronous": everything, "stale": nothing}


def _step_ids(seed: int, steps: int, world: int, span: int) -> list[list[dict[str, torch.Tensor]]]:
    """ids[step][rank][key]: some ranks empty, duplicates inside a sample, across ranks and steps. `span` of 23 items
    are in use at a time, moving by `span` each step, so few rows collide; with `span` 0 every batch uses the same."""
    random = np.random.default_rng(seed)
    batches = []
    for step in range(steps):
        ranks = []
        for _ in range(world):
            size = int(random.integers(0, 12))
            items = (random.integers(0, max(span, 1), size) + step * span) % 23
            actions = random.integers(0, 5, size)
            asked = (random.integers(0, max(span, 1), int(random.integers(0, 4))) + step * span) % 23
            if span == 0:
                items, actions = np.arange(4).repeat(2), np.arange(8) % 5
            columns = {"uih_action": actions, "uih_item": items, "candidate_item": asked}
            ranks.append({key: torch.from_numpy(column) for key, column in columns.items()})
        batches.append(ranks)
    return batches


def _kjt(ids: dict[str, torch.Tensor]) -> KeyedJaggedTensor:
    values = torch.cat([ids[key] for key in KEYS])
    return KeyedJaggedTensor(list(KEYS), values, lengths=torch.tensor([ids[key].numel() for key in KEYS]))


def _rate(step: int) -> float:
    return 0.2 / (1 + step % 7)


def _loss(embedded: dict[str, Any], step: int) -> torch.Tensor:
    """Its gradient depends on the weights, so a stale row gives another; rows shrink, so rounding dies out."""
    rows = torch.cat([embedded[key].values() for key in KEYS])
    return 0.1 * rows.square().sum() + 0.1 * (step % 3) * rows.sum()


def _train_tables(groups: Groups, device: Device, cases: list[Case]) -> list[Any]:
    """Tables after each case's steps."""
    results = []
    for seed, span, optimizer, steps, collide in cases:
        batches = _step_ids(seed, steps, groups.world, span)
        done = [0]
        tables = PrioritizedEmbeddings(
            FEATURES,
            WIDTH,
            optimizer,  # type: ignore[arg-type]
            lambda done=done: _rate(done[0]),
            collide=COLLIDE[collide],
            ids=groups.ids,
            priority=groups.priority,
            exclusive=groups.exclusive,
            recorder=Recorder(device, rank=groups.rank, transport=device.backend),
            device=device.torch_device,
            seed=7,
        )
        mine = [_kjt(ranks[groups.rank]) for ranks in batches]
        coming = iter([*mine, None])
        for _ in range(LOOKAHEAD):
            tables.announce(next(coming, None))
        losses = []
        for step in range(steps):
            tables.announce(next(coming, None))
            loss = _loss(tables(mine[step]), step)
            loss.backward()
            losses.append(float(loss))
            done[0] = step + 1
        tables.drain()
        tables.close()
        results.append((tables.local_rows(), losses, tables.counts))
    return results


def _whole(ranks: list[Any], case: int) -> dict[str, torch.Tensor]:
    pieces = sorted((piece for rank in ranks for piece in rank[case][0]), key=lambda piece: piece[:2])
    return {name: torch.cat([rows for n, _, rows in pieces if n == name]) for name in ("action", "item")}


def _naive(seed: int, span: int, optimizer: str, steps: int, world: int) -> dict[str, torch.Tensor]:
    """One process, float64 sums, every rank's batch, mean over ranks."""
    tables = {f.name: initial_rows(7, f.name, 0, f.vocabulary, WIDTH).double() for f in FEATURES}
    squares = {f.name: torch.zeros(f.vocabulary, dtype=torch.float64) for f in FEATURES}
    for step, ranks in enumerate(_step_ids(seed, steps, world, span)):
        leaves = {name: rows.clone().requires_grad_() for name, rows in tables.items()}

        class _Row:
            def __init__(self, values: torch.Tensor) -> None:
                self._values = values

            def values(self) -> torch.Tensor:
                return self._values

        total = sum(_loss({k: _Row(leaves[k.split("_")[1]][ids[k]]) for k in KEYS}, step) for ids in ranks)
        (total / world).backward()
        for name, leaf in leaves.items():
            gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            keys = [key for key in KEYS if key.split("_")[1] == name]
            touched = torch.unique(torch.cat([ids[key] for ids in ranks for key in keys]))
            rows = gradient[touched]
            if optimizer == "sgd":
                tables[name][touched] -= _rate(step) * rows
            else:
                squares[name][touched] += rows.square().mean(dim=1)
                tables[name][touched] -= (_rate(step) / (squares[name][touched].sqrt() + 1e-8))[:, None] * rows
    return tables


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_prioritized_equals_synchronous_bitwise_and_stale_does_not(world: int) -> None:
    kinds = [(span, optimizer) for span in (3, 20, 0) for optimizer in ("sgd", "rowwise_adagrad")]
    cases = [(span, span, optimizer, 50, how) for span, optimizer in kinds for how in COLLIDE]
    ranks = run_ranks(_train_tables, cases, world=world)
    for index in range(0, len(cases), 3):
        seed, span, optimizer, _, _ = cases[index]
        prioritized, synchronous, stale = (_whole(ranks, index + offset) for offset in range(3))
        naive = _naive(seed, span, optimizer, 50, world)
        for name in naive:
            assert torch.equal(prioritized[name], synchronous[name]), (span, optimizer, name)
            torch.testing.assert_close(prioritized[name].double(), naive[name], rtol=2e-4, atol=2e-5)
        assert [rank[index][1] for rank in ranks] == [rank[index + 1][1] for rank in ranks]
        if span == 0:
            assert not torch.equal(stale["item"], synchronous["item"]), "stale must fail this comparison"
    shares = []
    for index in range(0, len(cases), 6):
        counts = [count for rank in ranks for count in rank[index][2][1:]]
        shares.append(sum(count.colliding for count in counts) / sum(count.distinct for count in counts))
    assert 0 < shares[0] < shares[1] < shares[2] == 1


def test_a_row_no_step_shares_is_never_late() -> None:
    """Collision rate 0: items move on every step and the action table is out of the way."""
    ranks = run_ranks(_disjoint, world=2)
    assert all(count.colliding == count.late == 0 for rank in ranks for count in rank)


def _disjoint(groups: Groups, device: Device) -> Any:
    tables = PrioritizedEmbeddings(
        (Feature(name="item", vocabulary=40, of_candidate=False),),
        WIDTH,
        "sgd",
        lambda: 0.1,
        collide=colliding,
        ids=groups.ids,
        priority=groups.priority,
        exclusive=groups.exclusive,
        recorder=Recorder(device, rank=groups.rank, transport=device.backend),
        device=device.torch_device,
        seed=0,
    )
    batches = [
        KeyedJaggedTensor(["uih_item"], torch.arange(step * 4, step * 4 + 4), lengths=torch.tensor([4]))
        for step in range(10)
    ]
    for batch in batches:
        tables.announce(batch)
    tables.announce(None)
    for batch in batches:
        tables(batch)["uih_item"].values().sum().backward()
    tables.drain()
    tables.close()
    return tables.counts


# Inside training, against TorchRec

STEPS = 50
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
    model=ModelConfig(name="test", layers=1, dim=8, heads=2, dense_dtype="float64"),
)
ARMS = {
    "torchrec": Arm(name="torchrec"),
    "sdd": Arm(name="sdd", exchange="sdd"),
    "vbs": Arm(name="vbs", partition="vbs"),
    "prioritized": Arm(name="prioritized", exchange="prioritized"),
    "balance+priority": Arm(name="balance+priority", partition="fbs", exchange="prioritized"),
    "vbs+priority": Arm(name="vbs+priority", partition="vbs", exchange="prioritized"),
}


def _train_arms(groups: Groups, device: Device, sparse: str, arms: list[str]) -> dict[str, Any]:
    outcome = {}
    for name in arms:
        config = replace(CONFIG, gpus=groups.world, arm=ARMS[name], optimizer=OptimizerConfig(sparse=sparse))  # type: ignore[arg-type]
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)
        training = Training(config, InMemoryRequests(STEPS * 8 * groups.world), device, groups, recorder)  # type: ignore[arg-type]
        training.run(STEPS)
        built = training.outcome().built
        dense = data_parallel(built.model).module.dense
        outcome[name] = {
            "tables": [(table, first, rows.clone()) for table, first, rows in built.local_rows()],
            "dense": {key: value.detach().clone() for key, value in dense.named_parameters()},
        }
    return outcome


def _tables(ranks: list[dict[str, Any]], arm: str) -> dict[str, torch.Tensor]:
    pieces = sorted((piece for rank in ranks for piece in rank[arm]["tables"]), key=lambda piece: piece[:2])
    return {name: torch.cat([rows for n, _, rows in pieces if n == name]) for name in ("action", "item")}


def _distance(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max() / left.abs().max())


@pytest.mark.parametrize(("world", "sparse"), [(2, "sgd"), (2, "rowwise_adagrad"), (3, "sgd")])
def test_all_arms_train_the_same_model(world: int, sparse: str) -> None:
    ranks = run_ranks(_train_arms, sparse, list(ARMS), world=world)
    baseline = _tables(ranks, "torchrec")
    for arm in ARMS:
        for name, rows in _tables(ranks, arm).items():
            if arm == "sdd":
                assert torch.equal(rows, baseline[name]), (arm, name)
            assert _distance(baseline[name], rows) <= TOLERANCE[sparse], (arm, name)
        for name, value in ranks[0][arm]["dense"].items():
            assert _distance(ranks[0]["torchrec"]["dense"][name], value) <= TOLERANCE[sparse], (arm, name)


TOLERANCE = {"sgd": 1e-6, "rowwise_adagrad": 1e-5}
"""Adagrad divides a row's first gradients by their own size, so summation order shows more."""


def test_prioritized_equals_synchronous_for_any_ids() -> None:
    """Random cases, all in one start of the ranks, since that is what takes the time."""
    random = np.random.default_rng(11)
    drawn = [
        (int(random.integers(2**31)), int(random.integers(24)), OPTIMIZERS[case % 2], 1 + case % 9)
        for case in range(60)
    ]
    cases = [(*case, how) for case in drawn for how in ("prioritized", "synchronous")]
    ranks = run_ranks(_train_tables, cases, world=2)
    for index in range(0, len(cases), 2):
        for name, rows in _whole(ranks, index).items():
            assert torch.equal(rows, _whole(ranks, index + 1)[name]), cases[index]


def test_a_lane_that_waits_for_ids_leaves_the_main_lane_alone() -> None:
    """Otherwise dense work is cut where a lane begins to wait, and what the main lane did then seems to go on after."""
    for spans in run_ranks(_wait_for_ids_beside_dense_work, world=2):
        assert [op for op, category in spans if category != "communication"] == ["dense_forward"]
        assert [op for op, category in spans if category == "communication"] == [
            "id_splits_all_to_all",
            "id_all_to_all",
        ]


def _wait_for_ids_beside_dense_work(groups: Groups, device: Device) -> list[tuple[str, str]]:
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    exchange = IdExchange(RowSpace((40,), groups.world), groups.ids, recorder, colliding)
    lane = Lane("ids")
    recorder.switch(Op.DENSE_FORWARD)
    done = lane.submit(lambda: exchange.prepare([torch.arange(8)], 0))
    if groups.rank == 0:
        time.sleep(0.2)
    done.result()
    assert recorder.running is Op.DENSE_FORWARD
    lane.close()
    return [(span.op, span.category) for span in recorder.spans()]
