"""Without this, TorchRec's own prioritized embedding communication (PEC) could be taken for a reference of technique 2,
or still be called faulty once upstream has mended it. Two faults, both in `docs/torchrec_pec.md`: table gradients are
not divided by the world size, as TorchRec's `EmbeddingCollection` does, and those of several features are mixed up.
A failure that says so means that upstream changed.

PEC's building blocks are driven in the order of its train pipeline, beside `EmbeddingCollection` and this project's
`PrioritizedEmbeddings`: same rows, ids and gradients, chosen so that float32 loses nothing and SGD compares bitwise.
Not covered: `TrainPipelinePEC` on CUDA (streams, events), other optimizers, weight decay, several groups of tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm_ops import set_gradient_division
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, KJTList
from torchrec.distributed.pec_embedding import (
    BackwardPartitionContext,
    ForwardPartitionContext,
    PECEmbeddingCollectionContext,
    PECEmbeddingCollectionSharder,
    ShardedPECEmbeddingCollection,
)
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.pec_embedding_modules import PECEmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.comm.groups import Groups
from repro.config import SparseOptimizer
from repro.data.schema import Feature
from repro.device import Device
from repro.embedding.id_exchange import colliding
from repro.embedding.prioritized import LOOKAHEAD, PrioritizedEmbeddings
from repro.embedding.tables import OPTIMIZERS, embedding_collection, feature_keys, local_rows
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

ACTION = Feature(name="action", vocabulary=5, of_candidate=False)
ITEM = Feature(name="item", vocabulary=23, of_candidate=True)
CASES: dict[str, tuple[Feature, ...]] = {
    "one feature": (replace(ITEM, of_candidate=False),),
    "three features": (ACTION, ITEM),
}
"""The tables of each case; in the second, two features share the table of items."""
WIDTH = 4
STEPS = 6
SAMPLES = 2
RATE = 1 / 64
ADAGRAD_TOLERANCE = 1e-6
PER_GROUP = find_spec("torchrec.distributed.train_pipeline.pec_train_pipeline") is not None
"""TorchRec 1.9 takes a list, by group of tables, where 1.8 takes one group's."""
CHANGED = "TorchRec's PEC changed: update docs/torchrec_pec.md"


@dataclass(frozen=True)
class Variant:
    """How to train the tables."""

    which: Literal["pec", "collection", "own"]
    optimizer: SparseOptimizer = "sgd"
    divided: bool = True
    """TorchRec's gradient division, on by default."""
    rate_times_world: bool = False
    in_order: bool = False
    """PEC with the gradients that a rank received put into the order of its lookups."""


PEC, PEC_IN_ORDER = Variant("pec"), Variant("pec", in_order=True)
PEC_UNDIVIDED = replace(PEC_IN_ORDER, divided=False)
COLLECTION, UNDIVIDED = Variant("collection"), Variant("collection", divided=False)
RATE_TIMES_WORLD = Variant("collection", rate_times_world=True)
OWN = Variant("own")
ADAGRAD = {variant: replace(variant, optimizer="rowwise_adagrad") for variant in (PEC, PEC_IN_ORDER, COLLECTION, OWN)}
VARIANTS = (PEC, PEC_IN_ORDER, PEC_UNDIVIDED, COLLECTION, UNDIVIDED, RATE_TIMES_WORLD, OWN, *ADAGRAD.values())


def _keys(features: tuple[Feature, ...]) -> list[str]:
    return [key for feature in features for key in feature_keys(feature)]


# Batches: everything a small multiple of a power of two, gradients divisible by 2 and 3


def _ids(rank: int, step: int, key: str) -> torch.Tensor:
    """Duplicates within a sample, across samples, keys, ranks and steps; items move on, so some collide, others do not.
    Rank 1 has nothing at step 2."""
    random = np.random.default_rng([rank, step, len(key)])
    if (rank, step) == (1, 2):
        return torch.empty(0, dtype=torch.int64)
    if key == "uih_action":
        return torch.from_numpy(random.integers(0, 5, 4))
    return torch.from_numpy((random.integers(0, 8, 7) + 3 * step) % 23)


def _batch(keys: list[str], rank: int, step: int, device: torch.device) -> KeyedJaggedTensor:
    ids = [_ids(rank, step, key) for key in keys]
    lengths = [[len(column) - len(column) // SAMPLES, len(column) // SAMPLES] for column in ids]
    batch = KeyedJaggedTensor(keys, torch.cat(ids), lengths=torch.tensor(lengths, dtype=torch.int32).view(-1))
    return batch.to(device)


def _output_gradient(rank: int, step: int, key: str, rows: int, device: torch.device) -> torch.Tensor:
    random = np.random.default_rng([7, rank, step, len(key)])
    return torch.from_numpy(6.0 * random.integers(-4, 5, (rows, WIDTH))).to(device, torch.float32)


def _start(rows: list[tuple[str, int, torch.Tensor]]) -> None:
    for name, first, part in rows:
        numbers = torch.arange(first, first + part.shape[0])[:, None] * WIDTH + torch.arange(WIDTH)
        part.copy_((numbers * 37 + len(name)) % 128 / 64 - 1)


# One step of training is the same for all: a prescribed gradient for each output


def _backward(embedded: Any, keys: list[str], rank: int, step: int) -> torch.Tensor:
    """Outputs (lookups of all keys, WIDTH)."""
    parts = [embedded[key].values() for key in keys]
    gradients = [
        _output_gradient(rank, step, key, part.shape[0], part.device) for key, part in zip(keys, parts, strict=True)
    ]
    outputs = torch.cat(parts)
    outputs.backward(torch.cat(gradients))
    return outputs.detach().clone()


def _sharded(features: tuple[Feature, ...], variant: Variant, device: torch.device) -> nn.Module:
    world = dist.get_world_size()
    rate = RATE * (world if variant.rate_times_world else 1)
    plain = EmbeddingCollectionSharder(fused_params={"optimizer": OPTIMIZERS[variant.optimizer], "learning_rate": rate})
    module = embedding_collection(features, WIDTH)
    plan = construct_module_sharding_plan(
        module,
        per_param_sharding={f.name: row_wise(compute_kernel=EmbeddingComputeKernel.FUSED.value) for f in features},
        sharder=plain,
        local_size=world,
        world_size=world,
        device_type=device.type,
    )
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    if variant.which == "collection":
        return plain.shard(module, plan, env, device)
    return PECEmbeddingCollectionSharder(plain).shard(PECEmbeddingCollection(module), plan, env, device)


class Pec:
    """PEC's building blocks, for one group of tables."""

    def __init__(self, module: ShardedPECEmbeddingCollection, in_order: bool) -> None:
        self.module = module
        self.in_order = in_order
        self.overlapped = self.others = 0
        """Lookups that this rank served, by partition."""

    def distribute(self, batch: KeyedJaggedTensor) -> tuple[PECEmbeddingCollectionContext, KJTList]:
        """Ids to their owners."""
        context = self.module.create_context()
        return context, self.module.input_dist(context, batch).wait().wait()

    def overlap(
        self, batch: Any, before: Any
    ) -> tuple[ForwardPartitionContext | None, BackwardPartitionContext | None]:
        """Which lookups of `batch` and of `before` the other has, too; either may be None."""
        none = (None, None)
        (answer,) = self.module.overlap_dist(*(batch or none), *(before or none))
        return answer.wait()

    def look_up(self, batch: Any, part: ForwardPartitionContext, overlapped: bool) -> Any:
        """Starts rows on their way."""
        features = part.ol_features if overlapped else part.nol_features
        if overlapped:
            self.overlapped += features.values().numel()
        else:
            self.others += features.values().numel()
        arguments = ([features], [part.splits]) if PER_GROUP else (features, part.splits)
        return self.module.compute_and_output_dist_in_partition(batch[0], *arguments, overlapped)

    def send_gradients(
        self, context: PECEmbeddingCollectionContext, part: BackwardPartitionContext, overlapped: bool
    ) -> Any:
        """Starts gradients on their way; waiting for the result applies them."""
        features = part.ol_features if overlapped else part.nol_features
        (arriving,) = self.module.grad_dist(context, KJTList([features]), overlapped)
        if self.in_order:
            (sent,) = context.autograd_ctx_per_sharding
            received = sent.ol_grad_apply if overlapped else sent.nol_grad_apply
            received._work.wait()
            order = _rank_major_places(features, dist.get_world_size()).to(received._grad_buffer.device)
            received._grad_buffer = received._grad_buffer.view(-1, WIDTH)[order].view(-1)
        return arriving

    def train(self, batches: list[KeyedJaggedTensor], rank: int) -> list[torch.Tensor]:
        """Outputs of each step. Order of `TrainPipelinePEC.progress` (TorchRec 1.9.2)."""
        outputs = []
        current: Any = self.distribute(batches[0])
        forward, _ = self.overlap(current, None)
        early = self.look_up(current, forward, overlapped=False)
        deferred: Any = None
        for step in range(len(batches)):
            late = self.look_up(current, forward, overlapped=True)
            after = self.distribute(batches[step + 1]) if step + 1 < len(batches) else None
            forward_after, backward = self.overlap(after, current)
            arriving = self.send_gradients(deferred[0], deferred[1], overlapped=False) if deferred else None
            embedded = self.module.merge_partitioned_embeddings(current[0], late, early, [forward], [backward]).wait()
            if arriving is not None:
                arriving.wait()
            if after is not None:
                early = self.look_up(after, forward_after, overlapped=False)
            outputs.append(_backward(embedded, batches[step].keys(), rank, step))
            self.send_gradients(current[0], backward, overlapped=True).wait()
            deferred = (current[0], backward)
            current, forward = after, forward_after
        self.send_gradients(deferred[0], deferred[1], overlapped=False).wait()
        return outputs


def _rank_major_places(features: KeyedJaggedTensor, world: int) -> torch.Tensor:
    """An owner's lookups are ordered by feature, then rank; what it receives, by rank, then feature. For each lookup:
    its place in the latter order, int64 (lookups,)."""
    lengths = features.lengths().cpu().long().view(len(features.keys()), world, -1)
    ends = lengths.transpose(0, 1).reshape(-1).cumsum(0).view(world, len(features.keys()), -1).transpose(0, 1)
    firsts = (ends - lengths).reshape(-1)
    segments = zip(firsts.tolist(), lengths.reshape(-1).tolist(), strict=True)
    return torch.cat([torch.arange(first, first + length) for first, length in segments])


def _train_own(
    groups: Groups,
    device: Device,
    features: tuple[Feature, ...],
    optimizer: SparseOptimizer,
    batches: list[KeyedJaggedTensor],
) -> dict[str, Any]:
    tables = PrioritizedEmbeddings(
        features,
        WIDTH,
        optimizer,
        lambda: RATE,
        collide=colliding,
        ids=groups.ids,
        priority=groups.priority,
        exclusive=groups.exclusive,
        recorder=Recorder(device, rank=groups.rank, transport=device.backend),
        device=device.torch_device,
        seed=0,
    )
    _start(tables.local_rows())
    coming = iter([*batches, None])
    for _ in range(LOOKAHEAD):
        tables.announce(next(coming))
    outputs = []
    for step, batch in enumerate(batches):
        tables.announce(next(coming, None))
        outputs.append(_backward(tables(batch), batch.keys(), groups.rank, step))
    tables.drain()
    tables.close()
    return {"outputs": outputs, "rows": tables.local_rows()}


def _train_torchrec(
    features: tuple[Feature, ...], variant: Variant, batches: list[KeyedJaggedTensor], rank: int
) -> dict[str, Any]:
    module = _sharded(features, variant, batches[0].device())
    tables = module._embedding_collection if variant.which == "pec" else module
    assert isinstance(tables, ShardedEmbeddingCollection)
    _start(local_rows(tables))
    result: dict[str, Any] = {}
    if isinstance(module, ShardedPECEmbeddingCollection):
        pec = Pec(module, variant.in_order)
        result["outputs"] = pec.train(batches, rank)
        result["served"] = (pec.overlapped, pec.others)
    else:
        result["outputs"] = [
            _backward(module(batch).wait(), batch.keys(), rank, step) for step, batch in enumerate(batches)
        ]
    result["rows"] = [(table, first, rows.clone()) for table, first, rows in local_rows(tables)]
    (lookup,) = tables._lookups
    (kernel,) = (part for part in lookup.modules() if hasattr(part, "split_optimizer_states"))
    result["squares"] = [state[0] for state in kernel.split_optimizer_states() if variant.optimizer != "sgd"]
    result["iterations"] = int(kernel.iter)
    return result


def _train(groups: Groups, device: Device) -> dict[tuple[str, Variant | None], dict[str, Any]]:
    """What each variant of each case left behind on this rank; None: before training."""
    results: dict[tuple[str, Variant | None], dict[str, Any]] = {}
    for case, features in CASES.items():
        batches = [_batch(_keys(features), groups.rank, step, device.torch_device) for step in range(STEPS)]
        for variant in VARIANTS:
            set_gradient_division(variant.divided)
            results[case, variant] = (
                _train_own(groups, device, features, variant.optimizer, batches)
                if variant.which == "own"
                else _train_torchrec(features, variant, batches, groups.rank)
            )
            set_gradient_division(True)
        start = [(table, first, torch.empty_like(rows)) for table, first, rows in results[case, COLLECTION]["rows"]]
        _start(start)
        results[case, None] = {"rows": start}
    return results


# What came out


@cache
def _on_ranks(world: int) -> list[dict[tuple[str, Variant | None], dict[str, Any]]]:
    return run_ranks(_train, world=world)


class Outcome:
    """Results of one case on all ranks."""

    def __init__(self, case: str, world: int) -> None:
        self.features = CASES[case]
        self.world = world
        self._case = case
        self._ranks = _on_ranks(world)

    def of_ranks(self, variant: Variant | None, what: str) -> list[Any]:
        """By rank."""
        return [rank[self._case, variant][what] for rank in self._ranks]

    def table(self, variant: Variant | None) -> torch.Tensor:
        """Rows of all tables, in the order of their names."""
        pieces = sorted((piece for rows in self.of_ranks(variant, "rows") for piece in rows), key=lambda p: p[:2])
        return torch.cat([rows.cpu() for _, _, rows in pieces])

    def update(self, variant: Variant) -> torch.Tensor:
        """What training added to them."""
        return self.table(variant) - self.table(None)

    def outputs(self, variant: Variant) -> torch.Tensor:
        """Of all ranks and steps."""
        return torch.cat([output.cpu() for outputs in self.of_ranks(variant, "outputs") for output in outputs])

    def outputs_untrained(self) -> torch.Tensor:
        """What `outputs` would be had no row ever been updated."""
        start = self.table(None).split([feature.vocabulary for feature in self.features])
        tables = {key: rows for f, rows in zip(self.features, start, strict=True) for key in feature_keys(f)}
        keys, steps, ranks = _keys(self.features), range(STEPS), range(self.world)
        return torch.cat([tables[key][_ids(rank, step, key)] for rank in ranks for step in steps for key in keys])

    def squares(self, variant: Variant) -> torch.Tensor:
        """Row-wise Adagrad's accumulated mean squares."""
        return torch.cat([part.cpu().view(-1) for parts in self.of_ranks(variant, "squares") for part in parts])


CHOICES = [pytest.param((case, world), id=f"{case}, world {world}") for case in CASES for world in (2, 3)]


@pytest.fixture(params=CHOICES)
def outcome(request: pytest.FixtureRequest) -> Outcome:
    return Outcome(*request.param)


@pytest.fixture(params=[2, 3], ids=lambda world: f"world {world}")
def world(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_batches_collide_in_part(outcome: Outcome) -> None:
    overlapped, others = np.sum(outcome.of_ranks(PEC, "served"), axis=0)
    assert overlapped > 15
    assert others > 15
    trained = (outcome.update(COLLECTION) != 0).any(dim=1)
    assert float(trained.float().mean()) > 0.9


def test_this_projects_sgd_equals_the_embedding_collection_bitwise(outcome: Outcome) -> None:
    assert torch.equal(outcome.table(OWN), outcome.table(COLLECTION))
    assert torch.equal(outcome.outputs(OWN), outcome.outputs(COLLECTION))


def test_pec_sgd_update_of_one_feature_is_world_size_times_the_embedding_collections(world: int) -> None:
    outcome = Outcome("one feature", world)
    assert not torch.equal(outcome.table(PEC), outcome.table(COLLECTION)), CHANGED
    assert torch.equal(outcome.update(PEC), world * outcome.update(COLLECTION)), CHANGED
    assert torch.equal(outcome.table(PEC), outcome.table(PEC_IN_ORDER)), CHANGED


def test_pec_mixes_up_the_gradients_of_several_features(world: int) -> None:
    """Under SGD and under Adagrad: this one does not hide."""
    outcome = Outcome("three features", world)
    wrong = (outcome.update(PEC) != world * outcome.update(COLLECTION)).any(dim=1)
    assert float(wrong.float().mean()) > 0.5, CHANGED
    assert not torch.equal(outcome.table(PEC), outcome.table(COLLECTION)), CHANGED
    adagrad = (outcome.table(ADAGRAD[PEC]) - outcome.table(ADAGRAD[COLLECTION])).abs()
    assert float(adagrad.max()) > 1000 * ADAGRAD_TOLERANCE, CHANGED


def test_in_order_only_the_scale_differs(outcome: Outcome) -> None:
    """Hence the order is all there is to the mixing; and by the outputs, every row is read after all its updates."""
    assert torch.equal(outcome.update(PEC_IN_ORDER), outcome.world * outcome.update(COLLECTION)), CHANGED
    untrained = outcome.outputs_untrained()
    moved = outcome.outputs(COLLECTION) - untrained
    assert torch.equal(outcome.outputs(PEC_IN_ORDER), untrained + outcome.world * moved), CHANGED


def test_the_scale_is_a_division_that_pec_leaves_out(outcome: Outcome) -> None:
    """`EmbeddingCollection` divides gradients by the world size unless told not to; PEC does not either way."""
    assert torch.equal(outcome.table(PEC_IN_ORDER), outcome.table(UNDIVIDED)), CHANGED
    assert torch.equal(outcome.outputs(PEC_IN_ORDER), outcome.outputs(UNDIVIDED)), CHANGED
    assert torch.equal(outcome.table(PEC_IN_ORDER), outcome.table(PEC_UNDIVIDED)), CHANGED


def test_a_learning_rate_divided_by_the_world_size_undoes_the_scale(outcome: Outcome) -> None:
    """What the page tells users of PEC with SGD to do."""
    assert torch.equal(outcome.table(PEC_IN_ORDER), outcome.table(RATE_TIMES_WORLD)), CHANGED


def test_rowwise_adagrad_hides_the_scale_but_its_state_has_it(outcome: Outcome) -> None:
    for variant in (ADAGRAD[PEC_IN_ORDER], ADAGRAD[OWN]):
        for left, right in (
            (outcome.table(variant), outcome.table(ADAGRAD[COLLECTION])),
            (outcome.outputs(variant), outcome.outputs(ADAGRAD[COLLECTION])),
        ):
            torch.testing.assert_close(left, right, rtol=0, atol=ADAGRAD_TOLERANCE)
    squares = outcome.squares(ADAGRAD[COLLECTION])
    assert float(squares.max()) > 0
    assert torch.equal(outcome.squares(ADAGRAD[PEC_IN_ORDER]), outcome.world**2 * squares), CHANGED


def test_pec_counts_more_iterations_than_steps(outcome: Outcome) -> None:
    """The kernel counts lookups, and PEC looks up each part of a batch forward and, unless it is empty, once more to
    apply its gradients."""
    assert set(outcome.of_ranks(ADAGRAD[COLLECTION], "iterations")) == {STEPS}
    for iterations in outcome.of_ranks(ADAGRAD[PEC], "iterations"):
        assert 2 * STEPS < iterations <= 4 * STEPS, CHANGED
