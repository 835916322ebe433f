"""Durations of collectives: alpha-beta models by world size, with an NVLink and a NIC term. Over NCCL here; AllToAll
and AllGather may go over the host-staged ring instead (`repro.execution.simulated.host_ring`).

All sizes are bytes of the busiest rank, all results seconds of transfer once every rank has arrived. Waiting for ranks
is the engine's affair. A world of one moves nothing and costs one kernel launch.

Sources: latencies and efficiencies are fits to SimAI's `inputs/ratio` tables (8-GPU nodes; worst error 13 % for
AllToAll, 25 % for AllGather) and sums of NCCL's own tuner constants (src/graph/tuning.cc). See assumptions A8, A9.
"""

from __future__ import annotations

import numpy as np

from repro.execution.simulated import host_ring
from repro.execution.simulated.carriers import Carrier
from repro.execution.simulated.clusters import Cluster

_WORLDS = (8, 16, 32, 64, 128, 256)
_ALL_TO_ALL_LATENCY = (42e-6, 118e-6, 134e-6, 168e-6, 178e-6, 200e-6)
_ALL_TO_ALL_EFFICIENCY = (1.0, 0.81, 0.95, 0.92, 0.85, 0.80)  # of the NIC; the first entry is never used
_ALL_GATHER_LATENCY = (40e-6, 92e-6, 134e-6, 274e-6, 659e-6, 1177e-6)
_ALL_GATHER_LATENCY_SMALL = (11e-6, 23e-6, 43e-6, 82e-6, 159e-6, 314e-6)  # NCCL's LL protocol
_ALL_REDUCE_LATENCY = (25e-6, 67e-6, 109e-6, 150e-6, 192e-6, 234e-6)  # NVLS tree
_ALL_REDUCE_LATENCY_SMALL = (15e-6, 25e-6, 35e-6, 45e-6, 55e-6, 65e-6)  # LL tree
_SMALL_MESSAGE_PENALTY = 4.0
_SMALL_MESSAGE = 1_000_000
_ALL_GATHER_EFFICIENCY = 0.96
_BUCKET = 25 * 2**20
"""DistributedDataParallel's default bucket, bytes."""


def by_world(table: tuple[float, ...], world: int) -> float:
    """Value of a table over 8, 16, ..., 256 GPUs at `world`: linear in log2(world), the 8-GPU value below 8, and the
    last slope carried on beyond 256."""
    if world <= _WORLDS[-1]:
        return float(np.interp(np.log2(world), np.log2(_WORLDS), table))
    return table[-1] + (table[-1] - table[-2]) * float(np.log2(world / _WORLDS[-1]))


def all_to_all_split(cluster: Cluster, world: int) -> tuple[float, float]:
    """Shares of a rank's buffer that leave through the NIC and through NVLink when peers get equal parts."""
    near = min(cluster.gpus_per_node, world)
    return (world - near) / world, (near - 1) / world


def all_to_all(
    cluster: Cluster, world: int, *, nic_bytes: float, nvlink_bytes: float, carrier: Carrier = "process_group"
) -> float:
    """AllToAll: latency + the slower of its NIC part and its NVLink part; over the ring, both parts are one.

    Args:
        nic_bytes: most bytes any rank sends or receives across nodes.
        nvlink_bytes: most bytes any rank sends or receives inside its node.

    Example: 14.7 MB a rank, equal parts: 0.10 ms on 8, 0.76 ms on 64, 0.96 ms on 256 GPUs of `h100_paper`.
    """
    if carrier == "host_ring":
        return host_ring.all_to_all(cluster, world, sent_bytes=nic_bytes + nvlink_bytes)
    if world == 1:
        return cluster.kernel_launch
    # The fitted efficiency falls past 128 GPUs but is held at its last value past 256, where nothing is published.
    efficiency = by_world(_ALL_TO_ALL_EFFICIENCY, min(world, _WORLDS[-1]))
    network = nic_bytes / (efficiency * cluster.nic_bandwidth)
    return by_world(_ALL_TO_ALL_LATENCY, world) + max(network, nvlink_bytes / cluster.nvlink_bandwidth)


def all_to_all_equal(cluster: Cluster, world: int, *, buffer_bytes: float, carrier: Carrier = "process_group") -> float:
    """AllToAll with equal parts for all peers, seconds.

    Args:
        buffer_bytes: most bytes any rank sends to or receives from all ranks, its own part included.
    """
    nic, nvlink = all_to_all_split(cluster, world)
    return all_to_all(cluster, world, nic_bytes=nic * buffer_bytes, nvlink_bytes=nvlink * buffer_bytes, carrier=carrier)


def all_gather(cluster: Cluster, world: int, *, total_bytes: float, carrier: Carrier = "process_group") -> float:
    """AllGather of `total_bytes` (all ranks' shares together): the better of the low-latency protocol, which has a
    quarter of the bandwidth, and NCCL's ring; or the host ring."""
    if carrier == "host_ring":
        return host_ring.all_gather(cluster, world, total_bytes=total_bytes)
    if world == 1:
        return cluster.kernel_launch
    transfer = total_bytes * (world - 1) / world / _ring_bandwidth(cluster, world)
    return min(
        by_world(_ALL_GATHER_LATENCY_SMALL, world) + _SMALL_MESSAGE_PENALTY * transfer,
        by_world(_ALL_GATHER_LATENCY, world) + transfer,
    )


def all_reduce(cluster: Cluster, world: int, *, total_bytes: float) -> float:
    """AllReduce of a model's gradients, one bucket after another as DistributedDataParallel sends them."""
    if world == 1:
        return cluster.kernel_launch
    full, rest = divmod(total_bytes, _BUCKET)
    buckets = full * _one_all_reduce(cluster, world, _BUCKET)
    return buckets + (_one_all_reduce(cluster, world, rest) if rest or not full else 0.0)


def _one_all_reduce(cluster: Cluster, world: int, total_bytes: float) -> float:
    inside_node = world <= cluster.gpus_per_node
    bandwidth = cluster.nvlink_bandwidth if inside_node else cluster.all_reduce_bandwidth
    large = by_world(_ALL_REDUCE_LATENCY, world) + total_bytes * 2 * (world - 1) / world / bandwidth
    if total_bytes >= _SMALL_MESSAGE:
        return large
    small = by_world(_ALL_REDUCE_LATENCY_SMALL, world) + _SMALL_MESSAGE_PENALTY * total_bytes / bandwidth
    return min(small, large)


def _ring_bandwidth(cluster: Cluster, world: int) -> float:
    if world <= cluster.gpus_per_node:
        return cluster.nvlink_bandwidth
    return _ALL_GATHER_EFFICIENCY * cluster.gpus_per_node * cluster.nic_bandwidth
