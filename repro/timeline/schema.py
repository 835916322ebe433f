"""The span: one operation on one rank, in one schema for measured and simulated runs.

Times are integer nanoseconds on the run's one clock, so that the ledger's parts can sum to the window
exactly. Exports and tables show microseconds and milliseconds.

A communication span starts when *this rank* arrives at the collective and ends when it completes; spans of
one collective on different ranks carry the same `collective` number within a step, from which the ledger
learns when the last rank arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from repro.errors import InputError
from repro.pipeline.ops import OP_BY_LABEL

NO_COLLECTIVE = -1


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number read off a timeline, and its unit."""

    value: float
    unit: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One operation on one rank."""

    step: int
    rank: int
    lane: str
    """compute | comm | copy | host"""
    op: str
    """Label of a `repro.pipeline.ops.Op`."""
    category: str
    """compute | communication | memory | host | wait, stated where the span is emitted."""
    start_ns: int
    duration_ns: int
    bytes: int = 0
    """Bytes that leave this rank in a collective; its own share stays."""
    transport: str = ""
    """What carried a collective: gloo, nccl, or the simulated transport's name."""
    collective: int = NO_COLLECTIVE
    """Number of the collective within the step, equal on all its ranks; -1 outside collectives."""
    overlap_allowed: bool = False
    """Whether the schedule lets this span run beside compute."""
    reference_ns: int = 0
    """For compute: its duration without co-running communication; 0 when no reference is known."""


class Timeline:
    """Spans of one run as columns (structure of arrays), sorted by (rank, start)."""

    def __init__(self, spans: list[Span], *, run: str, mode: str) -> None:
        """
        Raises:
            InputError: a span whose op is not in the closed list, or with a negative duration.
        """
        self.run = run
        self.mode = mode
        for span in spans:
            if span.op not in OP_BY_LABEL:
                raise InputError(f"span of rank {span.rank}, step {span.step}: unknown op {span.op!r}")
            if span.duration_ns < 0:
                raise InputError(f"span {span.op} of rank {span.rank}, step {span.step}: negative duration")
        self.spans = sorted(spans, key=lambda s: (s.rank, s.start_ns, s.duration_ns))

    def column(self, name: str) -> np.ndarray:
        """One field of all spans, in order, as an array."""
        return np.array([getattr(span, name) for span in self.spans])

    def write(self, path: Path) -> None:
        """Write as Parquet, one row a span, `run` and `mode` in the file's metadata."""
        columns = {spec.name: [getattr(span, spec.name) for span in self.spans] for spec in fields(Span)}
        table = pa.table(columns, schema=_schema().with_metadata({"run": self.run, "mode": self.mode}))
        pq.write_table(table, path, compression="zstd")

    @classmethod
    def read(cls, path: Path) -> Timeline:
        """Read what `write` wrote."""
        table = pq.read_table(path)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        spans = [Span(**row) for row in table.to_pylist()]
        return cls(spans, run=metadata["run"], mode=metadata["mode"])


def _schema() -> pa.Schema:
    kinds = {"int": pa.int64(), "str": pa.string(), "bool": pa.bool_()}
    return pa.schema([(spec.name, kinds[str(spec.type)]) for spec in fields(Span)])
