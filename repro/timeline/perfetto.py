"""Export of a timeline as Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process a rank, one thread a lane. Spans of one lane that overlap (collectives in flight together) go to further
rows of that lane, because viewers drop slices that cross on one thread.

Source: the trace event format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

from repro.errors import InputError
from repro.pipeline.ops import Lane
from repro.timeline.schema import NO_COLLECTIVE, Span, Timeline

_LANES: tuple[str, ...] = ("compute", "comm", "copy", "host", "background")
"""By thread id; new lanes come last, so that ids stay. Viewers show them in the order of `Lane`."""
_ROWS_PER_LANE = 100
"""Thread ids a lane may use; lane k owns k x 100 .. k x 100 + 99."""


def write_trace(
    timeline: Timeline, path: Path, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> None:
    """Write `path` as trace JSON, gzipped when it ends in `.gz`.

    Args:
        steps, ranks: what to keep; None keeps all. `range(10, 12)` is two steps.

    Raises:
        InputError: nothing is left to write.
    """
    text = json.dumps(trace(timeline, steps=steps, ranks=ranks))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))  # no time stamp: equal timelines give equal files
    else:
        path.write_text(text, encoding="utf-8")


def trace(
    timeline: Timeline, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> dict[str, Any]:
    """The trace as a JSON-ready dict; `ts` and `dur` are microseconds, exact to the nanosecond."""
    spans = [
        span
        for span in timeline.spans
        if (steps is None or span.step in steps) and (ranks is None or span.rank in ranks)
    ]
    if not spans:
        raise InputError(f"run {timeline.run}: no spans of these steps and ranks")
    rows = _Rows()
    slices = [_slice(span, rows.place(span)) for span in spans]
    return {
        "traceEvents": [*rows.names(), *slices],
        "displayTimeUnit": "ms",
        "otherData": {"run": timeline.run, "mode": timeline.mode},
    }


def _slice(span: Span, thread: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"step": span.step, "category": span.category}
    if span.collective != NO_COLLECTIVE:
        arguments |= {"bytes": span.bytes, "transport": span.transport, "collective": span.collective}
    return {
        "ph": "X",
        "name": span.op,
        "cat": span.category,
        "pid": span.rank,
        "tid": thread,
        "ts": span.start_ns / 1000,
        "dur": span.duration_ns / 1000,
        "args": arguments,
    }


class _Rows:
    """Rows in use: end of the last span on each (rank, thread)."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}

    def place(self, span: Span) -> int:
        """Thread id of the first row of the span's lane that is free at its start. Spans must come by start time."""
        first = _LANES.index(span.lane) * _ROWS_PER_LANE
        for thread in range(first, first + _ROWS_PER_LANE):
            if self._ends.get((span.rank, thread), span.start_ns) <= span.start_ns:
                self._ends[span.rank, thread] = span.start_ns + span.duration_ns
                return thread
        raise InputError(f"rank {span.rank}, step {span.step}: over {_ROWS_PER_LANE} {span.lane} spans at once")

    def names(self) -> list[dict[str, Any]]:
        """Metadata events that name and order processes and threads."""
        ranks = sorted({rank for rank, _ in self._ends})
        events = [_metadata("process_name", rank, 0, name=f"rank {rank}") for rank in ranks]
        events += [_metadata("process_sort_index", rank, 0, sort_index=rank) for rank in ranks]
        for rank, thread in sorted(self._ends):
            lane, row = divmod(thread, _ROWS_PER_LANE)
            name = _LANES[lane] + (f" +{row}" if row else "")
            events.append(_metadata("thread_name", rank, thread, name=name))
            order = get_args(Lane).index(_LANES[lane]) * _ROWS_PER_LANE + row
            events.append(_metadata("thread_sort_index", rank, thread, sort_index=order))
        return events


def _metadata(kind: str, rank: int, thread: int, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": arguments}
