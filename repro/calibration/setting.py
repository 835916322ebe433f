"""How much a calibration does: sizes that leave the caches, and repeats that two cores do in a minute."""

from __future__ import annotations

from dataclasses import dataclass

from repro.comm.transport.host_ring import CHUNK_BYTES

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes and repeats."""

    repeats: int
    """Of each measurement, after warm-ups that do not count."""
    copy_bytes: int
    """Of a copy; an elementwise operand, too."""
    launches: int
    """Operations issued in one measurement of the launch cost."""
    gemm: int
    """Side of the square matrices."""
    attention_tokens: tuple[int, ...]
    attention_dim: int
    table_rows: int
    table_dim: int
    lookups: int
    world: int
    collective_bytes: tuple[int, ...]
    chunk_bytes: tuple[int, ...]
    """Chunk sizes that `host_ring` is measured with."""


CPU = Setting(
    repeats=15,
    copy_bytes=64 * MIB,
    launches=2000,
    gemm=1024,
    attention_tokens=(512, 2048),
    attention_dim=128,
    table_rows=1 << 18,
    table_dim=128,
    lookups=1 << 16,
    world=2,
    collective_bytes=(4 << 10, 64 << 10, 256 << 10, 1 * MIB, 4 * MIB, 16 * MIB),
    chunk_bytes=(CHUNK_BYTES, 1 * MIB),
)
"""For two cores."""

CUDA = Setting(
    repeats=15,
    copy_bytes=256 * MIB,
    launches=2000,
    gemm=4096,
    attention_tokens=(512, 2048, 8192),
    attention_dim=128,
    table_rows=1 << 22,
    table_dim=128,
    lookups=1 << 20,
    world=CPU.world,
    collective_bytes=CPU.collective_bytes,
    chunk_bytes=CPU.chunk_bytes,
)
"""For one data-centre GPU; never run yet."""
