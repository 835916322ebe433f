"""Without this, balancing could change what is learned: a wrong loss weight, a sample lost, doubled or sent without its
labels all show here as another trained model.

Not covered: the timing of the exchange, and ranks that run out of data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from repro.balance.exchange import BalancedExchange, Exchange, Unbalanced
from repro.balance.tuning import TunedShares
from repro.comm.groups import Groups
from repro.config import Arm, BalanceConfig, ModelConfig, OptimizerConfig, Partition, RunConfig
from repro.data.batch import collate
from repro.device import Device
from repro.embedding.tables import initial_rows
from repro.model.ranker import Ranker
from repro.pipeline.instrument import data_parallel
from repro.pipeline.train_step import train
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks
from tests.samples import FEATURES, ITEM, InMemoryRequests

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
        for feature in FEATURES:
            rows = initial_rows(0, feature.name, 0, feature.vocabulary, dim).double()
            self.tables[feature.name] = nn.Embedding.from_pretrained(rows, freeze=False)

    def forward(self, features: Any) -> Any:
        keys: list[str] = features.keys()
        return {key: _Values(self.tables[key.split("_", 1)[1]](features[key].values())) for key in keys}


class _Values:
    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def values(self) -> torch.Tensor:
        return self._values


def _train_reference(groups: Groups, device: Device, cases: list[tuple[Partition, int]]) -> list[Any]:
    """Parameters after training under each (partition, batch), and the counts of requests this rank trained."""
    outcomes = []
    for partition, batch_size in cases:
        torch.manual_seed(0)
        dataset = InMemoryRequests(STEPS * batch_size * groups.world, seed=groups.world)
        ranker = Ranker(_Tables(CONFIG.model.dim), FEATURES, CONFIG.model, max_length=40, world=groups.world)
        model = DistributedDataParallel(ranker)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)
        exchange: Exchange = Unbalanced()
        if partition != "identity":
            exchange = BalancedExchange(partition, groups.balance, recorder, capacity=batch_size)
        counts = []
        for t in range(STEPS):
            rows = dataset.global_rows(t, batch_size * groups.world)
            exchange.start(dataset.read(rows[groups.rank :: groups.world], 40))
            share = exchange.finish()
            assert share is not None
            counts.append(share.request_id.size)
            batch = collate(share, int(dataset.candidate_counts(rows).sum()))
            optimizer.zero_grad()
            model(batch)[0].backward()
            optimizer.step()
        dist.barrier()
        outcomes.append(({name: value.detach().clone() for name, value in model.named_parameters()}, counts))
    return outcomes


@pytest.mark.parametrize("world", [2, 3])
def test_balancing_moves_no_float64_digit(world: int) -> None:
    """Every partition, batches down to one request a rank, ranks left empty."""
    partitions = get_args(Partition)
    cases: list[tuple[Partition, int]] = [(name, batch) for batch in (BATCH, 3, 1) for name in partitions]
    ranks = run_ranks(_train_reference, cases, world=world)
    emptied = set()
    for index, (partition, batch) in enumerate(cases):
        plain = ranks[0][index // len(partitions) * len(partitions)][0]
        _assert_close(plain, ranks[0][index][0], 1e-10)
        if any(0 in rank[index][1] for rank in ranks):
            emptied.add((partition, batch))
    assert ("vbs", 1) in emptied and ("fbs", 1) not in emptied
    start = initial_rows(0, ITEM.name, 0, ITEM.vocabulary, CONFIG.model.dim).double()
    assert _relative(ranks[0][0][0]["module.embeddings.tables.item.weight"], start) > 1e-3, "nothing was trained"


class _SlowRank(Recorder):
    """Reports dense times in proportion to the tokens trained; rank 1 takes 1.5 times as long over them."""

    tokens: ClassVar[list[int]] = []

    def dense_ns(self, step: int) -> int:
        return 0 if step < 0 else int(1000 * self.tokens[step] * (1.5 if self._rank == 1 else 1.0))


def _tuned(groups: Groups, device: Device) -> tuple[list[float], list[int]]:
    _SlowRank.tokens = []
    recorder = _SlowRank(device, rank=groups.rank, transport=device.backend)
    shares = TunedShares(groups.world)
    balance = BalanceConfig(alpha=1.0, attention_length=1e12, autotune=True)
    exchange = BalancedExchange("vbs", groups.balance, recorder, capacity=32, balance=balance, shares=shares)
    data = InMemoryRequests(60 * 64, seed=5)
    for t in range(60):
        recorder.begin_step(t)
        rows = data.global_rows(t, 64)
        share = exchange(data.read(rows[groups.rank :: groups.world], 40))
        assert share is not None
        _SlowRank.tokens.append(int(share.uih_lengths.sum() + share.candidate_counts.sum()))
    return list(shares.state.share), _SlowRank.tokens


def test_a_slow_rank_gets_less_work_from_its_own_times() -> None:
    ranks = run_ranks(_tuned, world=2)
    assert ranks[0][0] == ranks[1][0], "every rank must hold the same shares"
    assert ranks[0][0] == pytest.approx([0.6, 0.4], abs=0.02)
    late = [sum(tokens[40:]) for _, tokens in ranks]
    assert late[0] / sum(late) == pytest.approx(0.6, abs=0.05)
