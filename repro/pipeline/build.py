"""Builds what an arm trains: the model with its sharded tables, the dense optimizer, the pipeline that steps them.

`blocking` and `sdd` are TorchRec's own sharding and pipelines; `prioritized` and `stale` put this project's tables in
the place of TorchRec's. The dense part and its optimizer are the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.train_pipeline.runtime_forwards import BaseForward
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from repro.comm.groups import Groups
from repro.config import RunConfig
from repro.data.batch import JaggedBatch
from repro.data.dataset import PreparedDataset
from repro.device import Device
from repro.embedding.id_exchange import RowCounts, colliding, nothing
from repro.embedding.prioritized import PrioritizedEmbeddings
from repro.embedding.tables import embedding_collection, local_rows, row_state, shard, sharded_collections
from repro.errors import RunError
from repro.model.ranker import Ranker
from repro.pipeline.instrument import data_parallel, instrument
from repro.timeline.recorder import Recorder


class Pipeline(Protocol):
    """Steps a model, as TorchRec's pipelines do."""

    def progress(self, dataloader_iter: Iterator[JaggedBatch]) -> Any:
        """Train the next batch; returns what the model returns beside its loss."""


@dataclass(frozen=True)
class Built:
    """A model ready to train."""

    model: nn.Module
    pipeline: Pipeline
    optimizer: torch.optim.Optimizer
    """Of the dense part."""
    announce: Callable[[KeyedJaggedTensor | None], None] | None
    """To be told of each batch's features one step before it is trained, in order, and of None after the last; None
    where nothing needs to know."""
    finish: Callable[[], None]
    """To be called after the last step: applies what is still on its way and lets go of threads."""

    def row_counts(self) -> list[RowCounts]:
        """Of each step so far; empty where TorchRec moves the rows, which does not count them."""
        return self._prioritized.counts if self._prioritized else []

    def drain(self) -> None:
        """Between steps: apply what is still on its way to the rows. TorchRec's pipelines are ahead with batches and
        ids only, which no row waits for."""
        if self._prioritized:
            self._prioritized.drain()

    def row_state(self) -> dict[str, torch.Tensor]:
        """What this rank needs of the sharded tables to go on after `drain`, by name."""
        if self._prioritized:
            return self._prioritized.state()
        collections = sharded_collections(self.model)
        return {name: value for collection in collections for name, value in row_state(collection).items()}

    def resume_rows(self, state: dict[str, torch.Tensor]) -> None:
        """Take what `row_state` gave, once its tensors that share memory with the tables have been filled."""
        if self._prioritized:
            self._prioritized.resume(state)

    @property
    def _prioritized(self) -> PrioritizedEmbeddings | None:
        embeddings = data_parallel(self.model).module.embeddings
        return embeddings if isinstance(embeddings, PrioritizedEmbeddings) else None

    def local_rows(self) -> list[tuple[str, int, torch.Tensor]]:
        """(table, its first local row, local rows (n, D)) of this rank."""
        if self._prioritized:
            return self._prioritized.local_rows()
        return [row for collection in sharded_collections(self.model) for row in local_rows(collection)]


def build(
    config: RunConfig,
    dataset: PreparedDataset,
    device: Device,
    groups: Groups,
    recorder: Recorder,
    learning_rate: Callable[[], float] | None = None,
) -> Built:
    """Everything of `config.arm`, instrumented. What the model starts from is a function of the config's seed alone.

    Args:
        learning_rate: of the sharded tables, for schedules; asked every step. None: the config's.

    Raises:
        RunError: TorchRec did not shard, fuse, wrap or pipeline as asked.
    """
    torch.manual_seed(config.seed)
    match config.arm.exchange:
        case "blocking" | "sdd":
            return _torchrec(config, dataset, device, groups, recorder)
        case "prioritized" | "stale":
            rate = learning_rate or (lambda: config.optimizer.sparse_lr)
            return _prioritized(config, dataset, device, groups, recorder, rate)
    assert_never(config.arm.exchange)


def _torchrec(config: RunConfig, dataset: PreparedDataset, device: Device, groups: Groups, recorder: Recorder) -> Built:
    ranker = _ranker(embedding_collection(dataset.manifest.features, config.model.dim), config, dataset, groups)
    model = shard(ranker, config.optimizer, device, groups.main, config.seed)
    replicated = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = _dense_optimizer(list(replicated.values()), config)
    instrument(model, optimizer, recorder)
    sharded_collections(model)
    pipeline: Pipeline = TrainPipelineBase(model, optimizer, device.torch_device)
    if config.arm.exchange == "sdd":
        pipeline = PipelinedSparseDist(model, optimizer, device.torch_device, execute_all_batches=True)
    return Built(model, pipeline, optimizer, announce=None, finish=lambda: None)


def _prioritized(
    config: RunConfig,
    dataset: PreparedDataset,
    device: Device,
    groups: Groups,
    recorder: Recorder,
    learning_rate: Callable[[], float],
) -> Built:
    embeddings = PrioritizedEmbeddings(
        dataset.manifest.features,
        config.model.dim,
        config.optimizer.sparse,
        learning_rate,
        collide=nothing if config.arm.exchange == "stale" else colliding,
        ids=groups.ids,
        priority=groups.priority,
        exclusive=groups.exclusive,
        recorder=recorder,
        device=device.torch_device,
        seed=config.seed,
    )
    ranker = _ranker(embeddings, config, dataset, groups).to(device.torch_device)
    model = DistributedDataParallel(ranker, process_group=groups.main, broadcast_buffers=False)
    optimizer = _dense_optimizer(list(model.parameters()), config)
    instrument(model, optimizer, recorder)

    def finish() -> None:
        embeddings.drain()
        embeddings.close()

    pipeline: Pipeline = TrainPipelineBase(model, optimizer, device.torch_device)
    return Built(model, pipeline, optimizer, announce=embeddings.announce, finish=finish)


def _ranker(embeddings: nn.Module, config: RunConfig, dataset: PreparedDataset, groups: Groups) -> Ranker:
    return Ranker(embeddings, dataset.manifest.features, config.model, max_length=config.max_uih, world=groups.world)


def _dense_optimizer(parameters: list[torch.Tensor], config: RunConfig) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=config.optimizer.dense_lr)


class PipelinedSparseDist(TrainPipelineSparseDist):
    """TorchRec's SDD pipeline, asserted to pipeline every sharded module: it only warns when it cannot."""

    def progress(self, dataloader_iter: Iterator[JaggedBatch]) -> Any:
        """One step.

        Raises:
            RunError: a sharded module is not pipelined.
        """
        output = super().progress(dataloader_iter)
        for collection in sharded_collections(self._model):
            if not isinstance(collection.forward, BaseForward):
                raise RunError("TorchRec's sparse-data-dist pipeline left a sharded module unpipelined")
        return output
