"""What the simulator takes for granted, numbered, with source and confidence, so that a report can print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["H", "M", "L"]
"""H: specification, source code or measured table. M: one measurement or a fit. L: weak, indirect, or a guess."""


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One thing taken for granted."""

    number: str
    """A1, A2, ...; stable once published."""
    statement: str
    source: str
    confidence: Confidence

    def __str__(self) -> str:
        return f"{self.number} ({self.confidence}): {self.statement} [{self.source}]"


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption(
        number="A1",
        statement="Attention runs in bf16, whatever model.dense_dtype says, at the achieved FLOP/s of the CUTLASS "
        "HSTU kernel as a fitted function of sequence length and head dimension (64, 128, 256; others are "
        "padded to the next).",
        source="NVIDIA recsys-examples, hstu_attn_h100_p10_heatmap.png; fit error up to 7 % (14 % for 256, forward)",
        confidence="M",
    ),
    Assumption(
        number="A2",
        statement="History attends causally, a candidate attends to the history only; backward takes 2.5 x the "
        "FLOPs of forward.",
        source="meta-recsys/generative-recommenders, hstu_attention_bench.py",
        confidence="H",
    ),
    Assumption(
        number="A3",
        statement="A thread block of the attention kernel is 128 query rows of one head, as in the kernel of A1. "
        "With one block a (sample, head), which the paper's remark on intra-kernel stragglers suggests, "
        "one history at the 21K cap bounds the kernel of every rank that holds one, whatever else it holds: "
        "steps grow several-fold and the baseline straggles less than half as much; that variant is `samples`.",
        source="recsys-examples kernel tiling; paper, technique 1",
        confidence="L",
    ),
    Assumption(
        number="A4",
        statement="Projections run at 672 TFLOP/s and elementwise work is 51.5 bf16 passes a layer at 2.8 TB/s, at "
        "any width; one third of elementwise time is forward. A layer takes at least 20 launches of 5 us.",
        source="recsys-examples PERF_ANALYSIS.md (8 layers, D=1024); split and floor guessed",
        confidence="M",
    ),
    Assumption(
        number="A5",
        statement="The GPU idles 6 ms a step for the host (loading, launch gaps), before the step's first op; no "
        "work of the data loader itself is modelled.",
        source="idle time in recsys-examples PERF_ANALYSIS.md",
        confidence="M",
    ),
    Assumption(
        number="A6",
        statement="A lookup moves two rows of bytes for each row asked for, a row update one for each gradient and two "
        "for each distinct row (counted from the real ids), at 2.5 and 1.45 TB/s. The benchmark used SGD; row-wise "
        "Adagrad adds its state's bytes.",
        source="recsys-examples dynamicemb benchmark",
        confidence="M",
    ),
    Assumption(
        number="A7",
        statement="The ranking head, the loss and metrics take no time; Adam makes one 28-byte pass over each dense "
        "parameter.",
        source="to be calibrated; byte count derived",
        confidence="L",
    ),
    Assumption(
        number="A8",
        statement="AllToAll is latency plus the slower of the busiest rank's NIC bytes and NVLink bytes, over "
        "fitted efficiencies by world size; nothing is published past 128 GPUs, 256 and more are "
        "extrapolated.",
        source="SimAI inputs/ratio tables, 8 x 400 Gb nodes, scaled to the NIC; fit error up to 13 %",
        confidence="M",
    ),
    Assumption(
        number="A9",
        statement="AllGather and AllReduce take the better of a low-latency protocol (quarter bandwidth) and ring "
        "or NVLS tree; AllReduce runs by 25 MiB buckets, one after another.",
        source="constants of NCCL's tuner (src/graph/tuning.cc); the factor 4 is a guess",
        confidence="L",
    ),
    Assumption(
        number="A10",
        statement="An id travels as 8 bytes, an embedding or gradient as model.dim x 4 bytes, once for every token "
        "and feature in the arms torchrec, sdd and balance: TorchRec's sequence embeddings are not deduplicated "
        "unless asked to be.",
        source="torchrec EmbeddingCollection, row-wise sharding, default settings",
        confidence="H",
    ),
    Assumption(
        number="A11",
        statement="Rows are dealt to owners by a hash. In TorchRec's arms every owner then receives the same number of "
        "lookups, which flatters them where a row is popular or a table small; in the other arms each owner is "
        "charged the distinct rows that ranks ask of it, counted from the real ids.",
        source="holds for hashed ids; contiguous blocks of ids ordered by popularity would be far more uneven",
        confidence="L",
    ),
    Assumption(
        number="A12",
        statement="Partitioning costs the host 100 ns a sample and two reads from the GPU; split sizes of the id "
        "exchange cost one.",
        source="guess of the order of a vectorised sort",
        confidence="L",
    ),
    Assumption(
        number="A13",
        statement="Collectives of one lane run one after another, those of two lanes side by side. Compute beside a "
        "collective runs at (1 - SMs held / 132) x (1 - HBM bandwidth taken / 3.35 TB/s) of its speed, the SMs from "
        "the rank's arrival on (NCCL's kernels spin), the bandwidth while bytes move; shares of several collectives "
        "add up. All compute is slowed alike, whether SMs, memory or launches bound it. Collectives are not slowed.",
        source="one channel is one CTA on its own SM (nccl#1656); the product form is derived; 30-40 % measured for "
        "matmuls beside AllGather inside a node (pytorch#179937), where it gives 43 %",
        confidence="L",
    ),
    Assumption(
        number="A14",
        statement="Nothing varies but lengths: no jitter, equal GPUs, an idle network.",
        source="first model",
        confidence="L",
    ),
    Assumption(
        number="A15",
        statement="Prioritized and stale exchanges send each distinct row once a rank (8 bytes of id, 1 of mask for "
        "each of two batches, model.dim x 4 each way). That saving is deduplication's, not priority's: the synchronous "
        "exchange of the same rows is simulated beside it (100 % collisions), and gains are split at it.",
        source="repro.embedding.id_exchange",
        confidence="H",
    ),
    Assumption(
        number="A16",
        statement="Collision embeddings, and after them the dense AllReduce, start beside the exclusive gradients on "
        "another communicator and share the network with them: all move at half speed until the shorter is done, over "
        "NCCL and over the host ring alike. Ids beside exclusive embeddings are too small to matter.",
        source="two process groups slow each other (torchrec#4251); equal shares are a guess",
        confidence="L",
    ),
    Assumption(
        number="A17",
        statement="Merging early and late rows, and one row for each lookup, moves twice as many rows of bytes at the "
        "speed of lookups; adding up the gradients of equal ids, at the end of dense backward, reads one row a lookup "
        "and reads and writes each distinct one at the speed of row updates. Lookups and updates of exclusive rows "
        "run beside dense work and slow it down in nothing.",
        source="byte counts of repro.embedding.prioritized; the last is optimistic",
        confidence="L",
    ),
    Assumption(
        number="A18",
        statement="The run is cut out of a longer one: batches after its last step are read from the data set, and "
        "where that ends its last batch stands in for them. Rows of tables over a million rows are sampled by a hash "
        "where a global batch has over 33 M events (a count of n rows is then off by about sqrt((k - 1) / n)).",
        source="repro.execution.simulated.rows; tested against full counts",
        confidence="H",
    ),
    Assumption(
        number="A19",
        statement="Where a figure varies the collision rate of one data set, that share of every rank's and every "
        "owner's rows collides, whatever the ids say, and nothing else changes.",
        source="definition of the sweep; a real change of rate also changes how often rows repeat",
        confidence="L",
    ),
    Assumption(
        number="A20",
        statement="On H100, NCCL holds 16 SMs in an AllToAll, 24 in an AllGather and 16 in an AllReduce, whatever the "
        "size of the message.",
        source="grids of NCCL kernels: nccl#1598, NVIDIA forum 337991, src/transport/nvls.cc; small ones take fewer",
        confidence="M",
    ),
    Assumption(
        number="A21",
        statement="The host-staged ring is flat: W - 1 messages of 7 us (RDMA verbs; gloo would take 40), at the "
        "slowest of D2H 52, H2D 55, NIC 23.5 GB/s and host memory, 480 GB/s a node over 4 passes a byte and the "
        "node's GPUs, all staging at once: 15 GB/s a GPU on h100_paper. The copies of one chunk of up to 4 MB are "
        "paid on top. Rounds inside a node take the same way as others.",
        source="nvbandwidth#24, uccl#113, SimAI calbusbw.h; host memory derived from 16 DDR5-4800 channels; the ring "
        "is that of repro.comm.transport.host_ring",
        confidence="L",
    ),
    Assumption(
        number="A22",
        statement="Of HBM bandwidth a collective takes the bytes it sends and receives in a second, averaged over "
        "ranks and its whole transfer: three times for AllToAll and AllGather of NCCL between nodes (buffer, FIFO, "
        "NIC), once inside a node, for AllReduce and for the host ring.",
        source="NCCL's staging FIFO (arXiv 2510.20171); the factors are derived, none was measured",
        confidence="L",
    ),
    Assumption(
        number="A23",
        statement="Under arm.transport host_ring every AllToAll and AllGather of the arm takes the ring, those the "
        "step is blocked on included, as the measured arm does; under host_ring_hidden these stay on NCCL. The paper "
        "does not say which of the two it does. The dense AllReduce always stays on NCCL. Simulated, TorchRec's "
        "exchange may take the ring, too; no measured run does that.",
        source="paper, technique 3 (collectives without reduction); repro.comm.transport.choose",
        confidence="M",
    ),
)
