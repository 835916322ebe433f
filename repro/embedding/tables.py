"""Embedding tables through TorchRec: row-wise sharded, fused optimizer, checked to be so.

TorchRec only warns when it falls back (to an unsharded module, or an unfused kernel), so after sharding every
table is asserted to be what was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingEnv, ShardingPlan, ShardingType
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection

from repro.config import OptimizerConfig, SparseOptimizer
from repro.data.batch import UIH_PREFIX
from repro.data.schema import CANDIDATE_PREFIX, Feature
from repro.device import Device
from repro.errors import RunError

INIT_BLOCK = 4096
"""Rows initialised from one generator state: rows are a function of (seed, table, row), not of the world size."""

OPTIMIZERS: Mapping[SparseOptimizer, EmbOptimType] = {
    "sgd": EmbOptimType.EXACT_SGD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
}


def feature_keys(feature: Feature) -> list[str]:
    """Keys of a batch that look up the feature's table."""
    keys = [UIH_PREFIX + feature.name]
    if feature.of_candidate:
        keys.append(CANDIDATE_PREFIX + feature.name)
    return keys


def embedding_collection(features: tuple[Feature, ...], dim: int) -> EmbeddingCollection:
    """One float32 table a feature, on the meta device; UIH and candidate keys of a feature share its table."""
    tables = []
    for feature in features:
        tables.append(
            EmbeddingConfig(
                name=feature.name,
                embedding_dim=dim,
                num_embeddings=feature.vocabulary,
                feature_names=feature_keys(feature),
                data_type=DataType.FP32,
            )
        )
    return EmbeddingCollection(tables=tables, device=torch.device("meta"))


def shard(
    model: nn.Module, optimizer: OptimizerConfig, device: Device, group: dist.ProcessGroup, seed: int
) -> DistributedModelParallel:
    """`model` with its `EmbeddingCollection`s sharded row-wise over `group` and the rest wrapped in DDP.

    Raises:
        RunError: TorchRec did not shard or fuse a table as asked.
    """
    sharder = EmbeddingCollectionSharder(
        fused_params={"optimizer": OPTIMIZERS[optimizer.sparse], "learning_rate": optimizer.sparse_lr}
    )
    world = dist.get_world_size(group)
    plans = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection):
            plans[path] = construct_module_sharding_plan(
                module,
                per_param_sharding={
                    table.name: row_wise(compute_kernel=EmbeddingComputeKernel.FUSED.value)
                    for table in module.embedding_configs()
                },
                sharder=sharder,
                local_size=min(world, torch.cuda.device_count()) if device.torch_device.type == "cuda" else world,
                world_size=world,
                device_type=device.torch_device.type,
            )
    sharded = DistributedModelParallel(
        module=model,
        env=ShardingEnv.from_process_group(group),
        device=device.torch_device,
        plan=ShardingPlan(plan=plans),
        sharders=[sharder],
    )
    for collection in sharded_collections(sharded):
        initialise_rows(collection, seed)
    return sharded


def sharded_collections(model: nn.Module) -> list[ShardedEmbeddingCollection]:
    """The sharded embedding collections of `model`, each checked to be row-wise, fused and spread over the group.

    Raises:
        RunError: one is not, or there is none, or an unsharded one is left.
    """
    collections = []
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection):
            raise RunError(f"{path}: TorchRec left this EmbeddingCollection unsharded")
        if isinstance(module, ShardedEmbeddingCollection):
            _check_sharding(path, module.module_sharding_plan)
            collections.append(module)
    if not collections:
        raise RunError("the model has no sharded EmbeddingCollection")
    return collections


def _check_sharding(path: str, plan: EmbeddingModuleShardingPlan) -> None:
    for table, parameter in plan.items():
        if parameter.sharding_type != ShardingType.ROW_WISE.value:
            raise RunError(f"{path}.{table}: sharded {parameter.sharding_type}, not row-wise")
        if parameter.compute_kernel != EmbeddingComputeKernel.FUSED.value:
            raise RunError(f"{path}.{table}: kernel {parameter.compute_kernel}, not fused")


def initialise_rows(collection: ShardedEmbeddingCollection, seed: int) -> None:
    """Fill every local shard with rows that depend on (seed, table, row) alone."""
    for table, first_row, rows in local_rows(collection):
        fill_rows(rows, seed, table, first_row)


def row_state(collection: ShardedEmbeddingCollection) -> dict[str, torch.Tensor]:
    """What this rank keeps of its rows: weights, and what the fused optimizer remembers of them. By name, sharing
    memory with the kernel."""
    state = {f"{table}.weight": rows for table, _, rows in local_rows(collection)}
    for of_table in collection.fused_optimizer.state_dict()["state"].values():
        for name, sharded in of_table.items():
            for piece in sharded.local_shards():
                state[name] = piece.tensor
    return state


def local_rows(collection: ShardedEmbeddingCollection) -> list[tuple[str, int, torch.Tensor]]:
    """(table, its first local row, local rows (N, D) sharing memory with the kernel), tables in order."""
    found = []
    for key, tensor in sorted(collection.state_dict().items()):
        table = key.split(".")[-2]
        for piece in tensor.local_shards():
            found.append((table, piece.metadata.shard_offsets[0], piece.tensor))
    return found


def initial_rows(seed: int, table: str, first_row: int, rows: int, dim: int) -> torch.Tensor:
    """Rows `first_row ..` of a table at the start of training: uniform in +-1/sqrt(dim), float32 (rows, dim)."""
    filled = torch.empty(rows, dim)
    fill_rows(filled, seed, table, first_row)
    return filled


def fill_rows(rows: torch.Tensor, seed: int, table: str, first_row: int) -> None:
    """As `initial_rows`, into `rows`, float32 (n, dim), block by block: a shard may be most of a machine's memory."""
    done = 0
    while done < rows.shape[0]:
        block, skip = divmod(first_row + done, INIT_BLOCK)
        digest = hashlib.sha256(f"{seed}/{table}/{block}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        values = torch.rand(INIT_BLOCK, rows.shape[1], generator=generator)[skip : skip + rows.shape[0] - done]
        rows[done : done + values.shape[0]] = (values * 2 - 1) / rows.shape[1] ** 0.5
        done += values.shape[0]
