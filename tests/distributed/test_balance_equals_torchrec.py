"""Without this, balancing could change what is learned: a wrong loss weight, a sample lost, doubled or sent without its
labels all show here as another trained model.

Not covered: the timing of the exchange, and ranks that run out of data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from repro.balance.exchange import BalancedExchange, Exchange, Unbalanced
from repro.comm.groups import Groups
from repro.comm.traced import traced_collectives
from repro.config import Arm, ModelConfig, OptimizerConfig, RunConfig
from repro.data.batch import collate
from repro.device import Device
from repro.embedding.tables import initial_rows
from repro.model.ranker import Ranker
from repro.pipeline.instrument import data_parallel
from repro.pipeline.train_step import train
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks
from tests.samples import FEATURES, InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS = 20
BATCH = 8
TORCHREC = Arm(name="torchrec")
BALANCE = Arm(name="balance", partition="fbs")
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="measured",
    arm=TORCHREC,
    dataset="in-memory",
    cluster="workstation_cpu",
    gpus=2,
    batch=BATCH,
    max_uih=40,
    steps=STEPS,
    model=ModelConfig(name="test", layers=2, dim=8, heads=2, dense_dtype="float64"),
)


def _relative(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).abs().max() / left.abs().max().clamp_min(1e-300))


def _assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert _relative(value, right[name]) <= tolerance, name


# With TorchRec's sharded float32 tables


def _train_torchrec(groups: Groups, device: Device, config: RunConfig) -> dict[str, Any]:
    dataset = InMemoryRequests(STEPS * BATCH * 2)
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    trained = train(
        replace(config, gpus=groups.world, batch=2 * BATCH // groups.world), dataset, device, groups, recorder
    )
    return {
        "tables": [(name, first, rows.clone()) for name, first, rows in trained.built.local_rows()],
        "dense": {n: p.detach().clone() for n, p in data_parallel(trained.built.model).module.dense.named_parameters()},
        "loss": [step.loss_sum for step in trained.steps],
        "requests": [step.requests for step in trained.steps],
        "tokens": [step.uih_tokens for step in trained.steps],
    }


def _assembled(ranks: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Whole tables from the ranks' shards, and the dense parameters of rank 0."""
    pieces = sorted((piece for rank in ranks for piece in rank["tables"]), key=lambda piece: piece[:2])
    names = {name for name, _, _ in pieces}
    tables = {name: torch.cat([rows for n, _, rows in pieces if n == name]) for name in names}
    return {**tables, **ranks[0]["dense"]}


@pytest.mark.parametrize("sparse", ["sgd", "rowwise_adagrad"])
def test_balanced_and_unbalanced_runs_train_the_same_model(sparse: Any) -> None:
    config = replace(CONFIG, optimizer=OptimizerConfig(sparse=sparse))
    plain = run_ranks(_train_torchrec, config, world=2)
    balanced = run_ranks(_train_torchrec, replace(config, arm=BALANCE), world=2)
    _assert_close(_assembled(plain), _assembled(balanced), 1e-6)
    for one, other in zip(plain[0]["dense"].values(), plain[1]["dense"].values(), strict=True):
        assert torch.equal(one, other)
    np.testing.assert_allclose(
        np.sum([rank["loss"] for rank in plain], axis=0), np.sum([rank["loss"] for rank in balanced], axis=0), rtol=1e-6
    )
    assert plain[0]["tokens"] != balanced[0]["tokens"], "the exchange moved nothing, so this test shows nothing"


def test_more_ranks_train_the_same_model_as_one() -> None:
    """With SGD: Adagrad would hide a gradient that is wrong by a factor."""
    config = replace(CONFIG, optimizer=OptimizerConfig(sparse="sgd"))
    one = run_ranks(_train_torchrec, config, world=1)
    two = run_ranks(_train_torchrec, replace(config, arm=BALANCE), world=2)
    four = run_ranks(_train_torchrec, replace(config, arm=BALANCE), world=4)
    _assert_close(_assembled(one), _assembled(two), 1e-6)
    _assert_close(_assembled(one), _assembled(four), 1e-6)


# With an unsharded float64 reference: nothing left to rounding


class _Tables(nn.Module):
    """The interface of an `EmbeddingCollection`, unsharded and in float64."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict()
        for index, feature in enumerate(FEATURES):
            rows = initial_rows(0, index, 0, feature.vocabulary, dim).double()
            self.tables[feature.name] = nn.Embedding.from_pretrained(rows, freeze=False)

    def forward(self, features: Any) -> Any:
        keys: list[str] = features.keys()
        return {key: _Values(self.tables[key.split("_", 1)[1]](features[key].values())) for key in keys}


class _Values:
    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def values(self) -> torch.Tensor:
        return self._values


def _train_reference(groups: Groups, device: Device, partition: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    dataset = InMemoryRequests(STEPS * BATCH * groups.world, seed=groups.world)
    ranker = Ranker(_Tables(CONFIG.model.dim), FEATURES, CONFIG.model, max_length=40, world=groups.world)
    model = DistributedDataParallel(ranker)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    exchange: Exchange = Unbalanced()
    if partition != "identity":
        exchange = BalancedExchange("fbs", groups.balance, recorder, capacity=BATCH)
    with traced_collectives(recorder):
        for t in range(STEPS):
            rows = dataset.global_rows(t, BATCH * groups.world)
            exchange.start(dataset.read(rows[groups.rank :: groups.world], 40))
            share = exchange.finish()
            assert share is not None
            batch = collate(share, int(dataset.candidate_counts(rows).sum()))
            optimizer.zero_grad()
            model(batch)[0].backward()
            optimizer.step()
    dist.barrier()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("world", [2, 3])
def test_balancing_moves_no_float64_digit(world: int) -> None:
    plain = run_ranks(_train_reference, "identity", world=world)
    balanced = run_ranks(_train_reference, "fbs", world=world)
    _assert_close(plain[0], balanced[0], 1e-10)
    start = initial_rows(0, 1, 0, FEATURES[1].vocabulary, CONFIG.model.dim).double()
    assert _relative(plain[0]["module.embeddings.tables.item.weight"], start) > 1e-3, "nothing was trained"
