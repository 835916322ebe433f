"""Records the spans of one measured rank.

The main lane is a state machine: at any time one compute or host op runs, or the rank waits inside a collective, or
nothing is known to run. `switch` closes the running op and opens the next; `waiting` suspends it while the rank is
blocked on a collective, so a rank that waits for a straggler never counts as computing. Collectives are recorded
from the rank's arrival to their completion, on the comm lane.

Marks are opaque and resolved to one clock when the run is over, because a CUDA event has no time until then.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from repro.pipeline.ops import Op
from repro.timeline.schema import NO_COLLECTIVE, Span

DENSE = (Op.DENSE_FORWARD, Op.DENSE_BACKWARD)

COLLECTIVES_PER_OP = 1000
"""Room for repeated collectives of one op in one step, in the numbering of collectives."""


class Clock(Protocol):
    """What the recorder needs of a device."""

    def mark(self) -> Any:
        """This point of the device's current stream."""

    def resolve_ns(self, mark: Any) -> int:
        """Host time of a mark; an int is host time already."""

    def synchronize(self) -> None:
        """Return when all marks have a time."""


@dataclass(slots=True)
class OpenCollective:
    """A collective in flight."""

    op: Op
    step: int
    number: int
    bytes: int
    on_device: bool
    arrived: Any
    overlap_allowed: bool
    transport: str
    completed: Any = None


@dataclass(slots=True)
class _Closed:
    op: Op
    step: int
    start: Any
    end: Any


class Recorder:
    """Spans of one rank. Belongs to the rank's main thread, but for `arrive`; an op is issued by one thread only."""

    def __init__(self, clock: Clock, *, rank: int, transport: str) -> None:
        self._clock = clock
        self._rank = rank
        self._transport = transport
        self._step = 0
        self._running: tuple[Op, Any] | None = None
        self._closed: list[_Closed] = []
        self._dense: defaultdict[int, list[_Closed]] = defaultdict(list)
        self._collectives: list[OpenCollective] = []
        self._issued: Counter[tuple[int, Op]] = Counter()
        self._pauses: list[tuple[int, int]] = []
        self._began_ns = 0

    @property
    def running(self) -> Op | None:
        """The op on the main lane now."""
        return self._running[0] if self._running else None

    @property
    def step(self) -> int:
        """The step that the main thread is at."""
        return self._step

    def dense_ns(self, step: int) -> int:
        """Dense compute of a past step of this rank, without waiting; 0 when unknown."""
        resolve = self._clock.resolve_ns
        return sum(resolve(closed.end) - resolve(closed.start) for closed in self._dense.get(step, ()))

    def begin_step(self, step: int) -> None:
        """Spans from here on belong to `step`."""
        self.switch(None)
        self._step = step

    def switch(self, op: Op | None) -> None:
        """The main lane now runs `op` (None: nothing known)."""
        if self._running is not None:
            running, since = self._running
            closed = _Closed(running, self._step, since, self._now(running.lane != "host"))
            self._closed.append(closed)
            if running in DENSE:
                self._dense[self._step].append(closed)
        self._running = (op, self._now(op.lane != "host")) if op is not None else None

    def arrive(
        self,
        op: Op,
        *,
        sent_bytes: int,
        on_device: bool,
        overlap_allowed: bool,
        step: int | None = None,
        transport: str | None = None,
    ) -> OpenCollective:
        """This rank enters a collective now. The only call that a lane's thread may make, too.

        Args:
            on_device: its tensors are the device's, not the host's.
            step: the step it belongs to; None for the main thread's. A lane must say, since the main thread moves on.
            transport: what moves it; None for the recorder's own.
        """
        at = self._step if step is None else step
        number = list(Op).index(op) * COLLECTIVES_PER_OP + self._issued[at, op]
        self._issued[at, op] += 1
        arrived, through = self._now(on_device), transport or self._transport
        opened = OpenCollective(op, at, number, sent_bytes, on_device, arrived, overlap_allowed, through)
        self._collectives.append(opened)
        return opened

    @contextmanager
    def during(self, op: Op) -> Iterator[None]:
        """The main lane runs `op` inside, and what it ran before afterwards."""
        before = self.running
        self.switch(op)
        try:
            yield
        finally:
            self.switch(before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The main lane is blocked on a collective; the suspended op resumes afterwards."""
        suspended = self.running
        self.switch(None)
        try:
            yield
        finally:
            self.switch(suspended)

    def complete(self, collective: OpenCollective) -> None:
        """The collective has ended for this rank, unless its completion is known already."""
        if collective.completed is None:
            collective.completed = self._now(collective.on_device)

    def _now(self, on_device: bool) -> Any:
        """Host work is timed by the host's clock: an event would say when the device got there."""
        return self._clock.mark() if on_device else time.perf_counter_ns()

    def pause(self, begin_ns: int, end_ns: int) -> None:
        """The run stood still from `begin_ns` to `end_ns` of the host clock, on all its ranks: leave that out.

        Pauses are given in order, and the same to all ranks, so that the run's clock stays one clock.
        """
        self._pauses.append((begin_ns, end_ns))

    def go_on(self, host_ns: int, run_ns: int) -> None:
        """The run was cut short at `run_ns` of its clock, in other processes, maybe before this machine last started,
        and goes on at `host_ns` of this host's clock, the same on all ranks. What was recorded till then is forgotten.
        """
        self.switch(None)
        self._closed, self._collectives = [], []
        self._began_ns = host_ns - run_ns

    def on_run_clock(self, host_ns: int) -> int:
        """A time of the host's clock, on the run's: pauses and the time before it went on are left out."""
        return host_ns - self._began_ns - sum(max(0, min(host_ns, end) - begin) for begin, end in self._pauses)

    def take(self) -> list[Span]:
        """As `spans`, and forgets them. What is still under way comes with a later call. No lane may be at work."""
        taken = self.spans()
        self._closed = []
        self._collectives = [opened for opened in self._collectives if opened.completed is None]
        return taken

    def spans(self) -> list[Span]:
        """All spans so far, on the run's clock. Ends the running op and synchronizes the device."""
        self.switch(None)
        self._clock.synchronize()

        def resolve(mark: Any) -> int:
            return self.on_run_clock(self._clock.resolve_ns(mark))

        spans = []
        for closed in self._closed:
            start, end = resolve(closed.start), resolve(closed.end)
            spans.append(self._span(closed.op, closed.step, start, end - start))
        for opened in self._collectives:
            if opened.completed is None:
                continue
            start, end = resolve(opened.arrived), resolve(opened.completed)
            spans.append(
                self._span(
                    opened.op,
                    opened.step,
                    start,
                    max(0, end - start),
                    sent_bytes=opened.bytes,
                    transport=opened.transport,
                    collective=opened.number,
                    overlap_allowed=opened.overlap_allowed,
                )
            )
        return spans

    def _span(
        self,
        op: Op,
        step: int,
        start: int,
        duration: int,
        *,
        sent_bytes: int = 0,
        transport: str = "",
        collective: int = NO_COLLECTIVE,
        overlap_allowed: bool = False,
    ) -> Span:
        return Span(
            step=step,
            rank=self._rank,
            lane=op.lane,
            op=op.label,
            category=op.category,
            start_ns=start,
            duration_ns=duration,
            bytes=sent_bytes,
            transport=transport,
            collective=collective,
            overlap_allowed=overlap_allowed,
        )
