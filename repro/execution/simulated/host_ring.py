"""Durations of collectives over the host-staged ring: the paper's technique 3, as in `repro.comm.transport.host_ring`.

Device to host by copy engine, host to host in W - 1 messages round a flat ring, host to device by copy engine; the
three run at once on chunks, so the slowest sets the pace and the copies of one chunk are paid on top:

    chunk / D2H + chunk / H2D + (W - 1) latency + bytes / min(D2H, H2D, NIC, host memory)

All GPUs of a node stage through its memory at once, and each byte passes it four times (written by the copy, read and
written by the two NICs, read by the other copy): 480 GB/s for eight GPUs leave each 15 GB/s, less than its NIC.

Example, 100 MB leaving each rank of `h100_paper`: 7.17 ms on 64 GPUs over the ring, 4.28 ms over NCCL. It is slower by
itself; what it is for is that no SM works on it (`repro.execution.simulated.contention`). Assumption A21.
"""

from __future__ import annotations

from repro.execution.simulated.clusters import Cluster

CHUNK_BYTES = 4_000_000
_MEMORY_PASSES = 4


def all_to_all(cluster: Cluster, world: int, *, sent_bytes: float) -> float:
    """AllToAll in ring order, seconds: in step k a rank sends to r+k and receives from r-k.

    Args:
        sent_bytes: most bytes any rank sends to or receives from all others, in its own node or not.
    """
    if world == 1:
        return cluster.kernel_launch
    return _seconds(cluster, world, message=sent_bytes / (world - 1), total=sent_bytes)


def all_gather(cluster: Cluster, world: int, *, total_bytes: float) -> float:
    """AllGather of `total_bytes` (all ranks' shares together) round the ring, seconds."""
    if world == 1:
        return cluster.kernel_launch
    share = total_bytes / world
    return _seconds(cluster, world, message=share, total=(world - 1) * share)


def staged_bandwidth(cluster: Cluster, world: int) -> float:
    """Bytes a second and direction of one GPU while all GPUs of its node stage."""
    staging = min(world, cluster.gpus_per_node)
    return min(
        cluster.device_to_host_bandwidth,
        cluster.host_to_device_bandwidth,
        cluster.nic_bandwidth,
        cluster.host_memory_bandwidth / (staging * _MEMORY_PASSES),
    )


def _seconds(cluster: Cluster, world: int, *, message: float, total: float) -> float:
    chunk = min(CHUNK_BYTES, message)
    copies = chunk / cluster.device_to_host_bandwidth + chunk / cluster.host_to_device_bandwidth
    return copies + (world - 1) * cluster.host_message_latency + total / staged_bandwidth(cluster, world)
