"""Hardware of the clusters that can be simulated.

Confidence of a number, as everywhere in this package: H = vendor specification, source code or measured table; M = one
measurement, near-identical hardware, or a fit to a published table; L = weak, indirect or second-hand.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from repro.errors import InputError

CLUSTER_NAMES: tuple[str, ...] = ("h100_paper", "workstation_cpu")
"""Names a config may use. `workstation_cpu` belongs to measured runs and has no profile."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A homogeneous GPU cluster. Bandwidths are bytes a second in one direction, times are seconds."""

    name: str
    gpu: str
    """Name of the device, for tables."""
    gpus: int
    """GPUs in the whole cluster; the largest world size that can be simulated on it."""
    gpus_per_node: int
    """GPUs that share NVLink; each has its own NIC."""
    bf16_flops: float
    """Dense bf16 peak, FLOP/s; for MFU only, no duration uses it."""
    sms: int
    """Streaming multiprocessors a GPU."""
    lookup_bandwidth: float
    """Achieved by the fused embedding lookup, bytes read plus written a second."""
    update_bandwidth: float
    """Achieved by the fused row update, bytes read plus written a second."""
    elementwise_bandwidth: float
    """Achieved by elementwise kernels, bytes read plus written a second."""
    gemm_flops: float
    """Achieved by projection matmuls in bf16, forward and backward together, FLOP/s."""
    nvlink_bandwidth: float
    """Achieved per GPU and direction by NCCL inside a node."""
    nic_bandwidth: float
    """Achieved per GPU and direction through its NIC."""
    all_reduce_bandwidth: float
    """Bus bandwidth of an AllReduce that spans nodes."""
    hbm_bandwidth: float
    """Peak of the GPU's memory, reads plus writes."""
    device_to_host_bandwidth: float
    """By a copy engine into pinned memory."""
    host_to_device_bandwidth: float
    """By a copy engine out of pinned memory."""
    host_memory_bandwidth: float
    """Usable in a node's memory, reads plus writes, shared by its GPUs."""
    host_message_latency: float
    """A message between the host memories of two GPUs, its software included."""
    kernel_launch: float
    """One kernel launch, seen by the GPU."""
    stream_sync: float
    """Host waits for the GPU and reads a result."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if not isinstance(value, str) and value <= 0:
                raise InputError(f"cluster {self.name}, {spec.name}: must be > 0, got {value}")


H100_PAPER = Cluster(
    name="h100_paper",
    gpu="H100 SXM 80 GB",
    gpus=256,  # H: the paper's largest run
    gpus_per_node=8,  # H: paper, "Evaluation"
    bf16_flops=989e12,  # H: NVIDIA data sheet
    sms=132,  # H: NVIDIA data sheet
    lookup_bandwidth=2.5e12,  # M: below the 3.1 TB/s that NVIDIA recsys-examples' dynamicemb reaches with L2 hits
    update_bandwidth=1.45e12,  # H: recsys-examples dynamicemb, backward + SGD 0.614 ms for 1.049 M lookups
    elementwise_bandwidth=2.8e12,  # M: derived from recsys-examples PERF_ANALYSIS.md
    gemm_flops=672e12,  # H: recsys-examples PERF_ANALYSIS.md, all GEMMs
    nvlink_bandwidth=240e9,  # M: 600 GB/s NVSwitch is 300 a direction; NCCL reaches 232-247 there (nccl-tests#175)
    nic_bandwidth=23.5e9,  # H: 200 Gb/s port, SimAI calbusbw.h; 24 alone in nccl#1048
    all_reduce_bandwidth=182e9,  # H: 91 GB/s over 4 HDR-200 NICs (nccl-tests#100), twice that over 8
    hbm_bandwidth=3.35e12,  # H: NVIDIA data sheet, SXM 80 GB
    device_to_host_bandwidth=52e9,  # M: 52.8 by an SM copy (nvbandwidth#24); by copy engine 52-55, derived
    host_to_device_bandwidth=55e9,  # M: PCIe 5 x16 by copy engine, NVIDIA nvbandwidth
    host_memory_bandwidth=480e9,  # L: 2 sockets of 8 DDR5-4800 channels are 614 GB/s peak; never measured
    host_message_latency=7e-6,  # M: 6.5 us by RDMA verbs (uccl#113); gloo takes 40 us
    kernel_launch=5e-6,  # L: 3.1 us for a 0-byte NCCL op on H20 (DeepEP#303), more through PyTorch
    stream_sync=10e-6,  # L: half of a V100 round trip
)
"""The paper's cluster: 256 x H100 80 GB, 600 GB/s NVSwitch, 8 x 200 Gb/s InfiniBand a node, PCIe 5.0."""


def cluster(name: str) -> Cluster:
    """Profile of a cluster.

    Raises:
        InputError: unknown name, or a cluster that only serves measured runs.
    """
    match name:
        case "h100_paper":
            return H100_PAPER
        case "workstation_cpu":
            raise InputError(
                "cluster: workstation_cpu has no calibrated profile, so it serves measured runs only; "
                "simulate on h100_paper"
            )
        case _:
            raise InputError(f"cluster: {name!r} is not one of {', '.join(CLUSTER_NAMES)}")
