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
        statement="Lookup moves two and row update one plus twice 0.43 rows of bytes a lookup (43 % of the lookups "
        "an owner receives are distinct), at 2.5 and 1.45 TB/s. The benchmark used SGD; row-wise Adagrad "
        "adds its state's bytes.",
        source="recsys-examples dynamicemb benchmark; distinct share derived for Zipf 1.05 over 50 M rows",
        confidence="L",
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
        "and feature: TorchRec's sequence embeddings are not deduplicated.",
        source="torchrec EmbeddingCollection, row-wise sharding",
        confidence="H",
    ),
    Assumption(
        number="A11",
        statement="Rows are spread evenly over ranks, so every owner receives the same number of lookups from every "
        "peer.",
        source="holds for hashed ids; popular rows make it optimistic",
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
        statement="Collectives of one rank run one after another, and compute beside a collective is not slowed down.",
        source="first model; contention is not modelled yet",
        confidence="L",
    ),
    Assumption(
        number="A14",
        statement="Nothing varies but lengths: no jitter, equal GPUs, an idle network.",
        source="first model",
        confidence="L",
    ),
)
