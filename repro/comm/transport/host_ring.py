"""Host-staged collectives that take no SMs: the paper's technique 3.

Tensors of a GPU are copied to host memory by its copy engines, move over the network in chunks between CPU process
groups, and are copied back, all three at once; the GPU's SMs stay with dense work. Tensors in host memory skip the
copies; everything else is the same code.

Two threads run each transport, one a direction, so collectives progress whatever the main thread does. There is one
gloo group a direction, too: a message between two ranks goes through `up` when it goes to the higher rank, else through
`down`. A gloo connection reads and writes in turns, so one used both ways is half duplex in effect.

When anything fails (a peer that is lost or late, a full pool that stays full), the transport closes its connections:
neighbours then notice at once and do the same, so that every rank fails within the timeout of the first one. A
transport that has failed does nothing more, and every handle raises what failed first. Ranks whose splits disagree are
not caught: gloo ends the process that receives too much, as it does in its own collectives.

Source: paper, technique 3, https://arxiv.org/abs/2604.24073.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from repro.comm import faults
from repro.comm.groups import TIMEOUT
from repro.comm.transport import schedule
from repro.comm.transport.contract import Handle, Transport, as_bytes
from repro.comm.transport.gloo_link import GlooLink
from repro.comm.transport.stages import Arrivals, Stages
from repro.device.copies import COPIES_IN_FLIGHT, Copies, copies_for
from repro.device.lane import Lane
from repro.device.pinned import PinnedPool
from repro.errors import InputError

CHUNK_BYTES = 64 * 1024
DEPTH = 2
"""Chunks and messages in flight that gave most bandwidth between 4 CPU ranks on a 200 Mbit network: more bytes in
flight let the next sender in before the last one is done, and both then share the receiver's link. A faster network
wants larger chunks, which is for calibration to say."""


class HostRing(Transport):
    """Chunked AllGather and AllToAll over CPU groups, on threads of its own."""

    name = "host_ring"

    def __init__(
        self,
        group: dist.ProcessGroup,
        up: dist.ProcessGroup,
        down: dist.ProcessGroup,
        copies: Copies,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        depth: int = DEPTH,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        """Most callers want `connect`.

        Args:
            up, down: gloo groups of the ranks of `group` that nothing else uses.
            chunk_bytes: most bytes of a message, equal on all ranks.
            depth: messages in flight in each direction, equal on all ranks.
            timeout: of the two groups, and of every other wait.

        Raises:
            InputError: chunk size or depth is not positive.
        """
        super().__init__(group)
        if chunk_bytes < 1 or depth < 1:
            raise InputError(f"host_ring: chunk_bytes {chunk_bytes} and depth {depth} must be at least 1")
        self.chunk_bytes, self.depth = chunk_bytes, depth
        self._timeout = timeout.total_seconds()
        self._link = GlooLink(self.rank, up, down)
        self._copies = copies
        staged = int(copies.staged)
        pools = [
            PinnedPool(chunk_bytes, staged * chunks, pin=copies.pin, timeout_seconds=self._timeout)
            for chunks in (depth + COPIES_IN_FLIGHT, 2 * depth + COPIES_IN_FLIGHT)
        ]
        self.send_pool, self.receive_pool = pools
        self._stages = Stages(self._link, copies, self.send_pool, self.receive_pool, depth)
        self._sending, self._receiving = Lane("host_ring send"), Lane("host_ring receive")
        self._open: set[HostRingWork] = set()
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    @classmethod
    def connect(
        cls,
        device: torch.device,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        depth: int = DEPTH,
        timeout: timedelta = TIMEOUT,
        copies: Copies | None = None,
    ) -> HostRing:
        """Between all ranks. Makes process groups, so every rank must call it, in the same order as other groups.

        Args:
            device: where the tensors lie.
            copies: None: those that the device needs.
        """
        world = dist.group.WORLD
        assert world is not None, "the ranks have not met yet"
        up, down = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
        ways = copies or copies_for(device, timeout.total_seconds())
        return cls(world, up, down, ways, chunk_bytes=chunk_bytes, depth=depth, timeout=timeout)

    def close(self) -> None:
        """End the threads and close the connections. What is in flight fails."""
        if self._open and self._failure is None:
            self._fail(RuntimeError("host_ring was closed with a collective in flight"))
        self._sending.close()
        self._receiving.close()
        for group in (self._link.up, self._link.down):
            dist.destroy_process_group(group)

    def _all_to_all(self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int]) -> Handle:
        plan = schedule.all_to_all(self.rank, self.world, received, sent, self.chunk_bytes)
        return self._start(plan, output, input)

    def _all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Handle:
        plan = schedule.all_gather(self.rank, self.world, input.nbytes, self.chunk_bytes, self.depth)
        return self._start(plan, output, input)

    def _start(self, plan: schedule.Schedule, output: torch.Tensor, input: torch.Tensor) -> Handle:
        output_B, input_B = as_bytes(output), as_bytes(input)
        ready = self._copies.ready(output, input)
        work = HostRingWork(self._copies, Arrivals(self._timeout))
        with self._lock:
            failure = self._failure
            if failure is None:
                self._open.add(work)
        if failure is not None:
            work.end(failure)
            return work
        send = partial(self._stages.sending, plan, input_B, work.arrivals, ready)
        receive = partial(self._stages.receiving, plan, input_B, output_B, work.arrivals, ready)
        self._sending.submit(partial(self._run, send, work))
        self._receiving.submit(partial(self._run, receive, work))
        return work

    def _run(self, half: Callable[[], Any], work: HostRingWork) -> None:
        """On a lane's thread."""
        try:
            if self._failure is not None:
                raise self._failure
            point = half()
        except Exception as error:
            self._fail(error)
            raise
        with self._lock:
            work.halves_done += 1
            work.point = point or work.point
            if work.halves_done < 2 or work not in self._open:
                return
            self._open.remove(work)
        work.end(None)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            waiting = list(self._open)
            self._open.clear()
        faults.notice(self.rank)
        for work in waiting:
            work.arrivals.close()
            work.end(error)
        self.send_pool.close()
        self.receive_pool.close()
        self._link.cut()


class HostRingWork(dist.Work):
    """A collective of `HostRing` in flight."""

    def __init__(self, copies: Copies, arrivals: Arrivals) -> None:
        super().__init__()
        self.arrivals = arrivals
        self.halves_done = 0
        self.point: Any = None
        """After which the output is whole; known when the receiving half is done."""
        self._copies = copies
        self._ended = threading.Event()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._failure: Exception | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block the host until all chunks have arrived; on a GPU the caller's stream then waits for the last copies.

        Raises:
            RuntimeError: the collective failed, or `timeout` passed.
        """
        if not self._ended.wait(None if timeout is None else timeout.total_seconds()):
            assert timeout is not None
            raise RuntimeError(f"host_ring: not done within {timeout.total_seconds():g} s")
        if self._failure is not None:
            raise RuntimeError(f"host_ring: {self._failure}") from self._failure
        self._copies.join(self.point)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set() and (self._failure is not None or self._copies.reached(self.point))

    def get_future(self) -> torch.futures.Future[Any]:
        """Done when the host's part has ended."""
        return self._future

    def end(self, failure: Exception | None) -> None:
        """Called once, by the transport."""
        self._failure = failure
        if failure is None:
            self._future.set_result(None)
        else:
            self._future.set_exception(failure)
        self._ended.set()
