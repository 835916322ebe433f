"""The two halves of one collective of `host_ring`, each run by a thread of its own.

    sending     copy down (if staged) -> send -> free the chunk
    receiving   post a receive -> copy up (if staged) -> free the chunk

Each half keeps a few chunks in each of its stages, so copies, network and the other half go on at the same time. The
halves meet in one place: a chunk that a ring passes on is sent from where it was received.

The sending half never waits for a free chunk: it frees its own. The receiving half waits when chunks to be passed on
pile up, and posts no receive meanwhile, which stops the sender upstream: backpressure ends at whoever is slow.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import torch

from repro.comm.transport.schedule import Receive, Schedule, Send
from repro.device.copies import COPIES_IN_FLIGHT, Copies, Ticket
from repro.device.pinned import PinnedPool


class Message(Protocol):
    """A chunk on its way; `torch.distributed.Work` is one."""

    def wait(self) -> bool:
        """Return when it has left or arrived."""


class Link(Protocol):
    """Point-to-point messages of host memory, in order for each pair of ranks."""

    def send(self, chunk: torch.Tensor, peer: int) -> Message:
        """Start to send uint8."""

    def receive(self, chunk: torch.Tensor, peer: int) -> Message:
        """Start to receive uint8."""


class Arrivals:
    """Chunks that were received and are to be passed on: the one place where the two halves wait for each other."""

    def __init__(self, timeout_seconds: float) -> None:
        self._chunks: dict[int, tuple[torch.Tensor, Lease | None]] = {}
        self._changed = threading.Condition()
        self._timeout = timeout_seconds
        self._closed = False

    def put(self, index: int, data: torch.Tensor, lease: Lease | None) -> None:
        """Receive number `index` has arrived in `data`."""
        with self._changed:
            self._chunks[index] = (data, lease)
            self._changed.notify()

    def is_there(self, index: int) -> bool:
        """Whether receive number `index` has arrived."""
        with self._changed:
            return index in self._chunks

    def get(self, index: int) -> tuple[torch.Tensor, Lease | None]:
        """Wait for receive number `index`.

        Raises:
            RuntimeError: it did not arrive in time, or the other half failed.
        """
        with self._changed:
            there = self._changed.wait_for(lambda: self._closed or index in self._chunks, self._timeout)
            if self._closed or not there:
                raise RuntimeError(f"a chunk to be passed on did not arrive within {self._timeout:g} s")
            return self._chunks.pop(index)

    def close(self) -> None:
        """Whoever waits gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Lease:
    """A chunk of a pool that several stages use; the last to be done gives it back."""

    def __init__(self, pool: PinnedPool, users: int) -> None:
        self.chunk = pool.take()
        self._pool = pool
        self._users = users
        self._lock = threading.Lock()

    def done(self) -> None:
        """One user less."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._pool.give(self.chunk)


@dataclass(frozen=True)
class Stages:
    """What both halves share, for all collectives of a transport."""

    link: Link
    copies: Copies
    send_pool: PinnedPool
    receive_pool: PinnedPool
    depth: int
    """Messages in flight in each direction."""

    def sending(self, schedule: Schedule, input: torch.Tensor, arrivals: Arrivals, ready: Ticket) -> None:
        """Everything that leaves.

        Args:
            input: uint8 (bytes,).

        Raises:
            RuntimeError: a peer was lost, or something did not end in time.
        """
        copying: deque[tuple[Send, Lease, Ticket]] = deque()
        flying: deque[tuple[Message, Lease | None]] = deque()

        def launch(data: torch.Tensor, peer: int, lease: Lease | None) -> None:
            while len(flying) >= self.depth:
                _land(flying)
            flying.append((self.link.send(data, peer), lease))

        def launch_copied(left: int) -> None:
            while len(copying) > left:
                send, lease, copied = copying.popleft()
                self.copies.settle(copied)
                launch(lease.chunk[: send.last - send.first], send.peer, lease)

        self.copies.follow(ready)
        for send in schedule.sends:
            if send.passes_on is not None:
                # Own chunks first: the neighbour may wait for them before it sends what is waited for here.
                launch_copied(0)
                data, passed = arrivals.get(send.passes_on)
                launch(data, send.peer, passed)
            elif self.copies.staged:
                launch_copied(COPIES_IN_FLIGHT - 1)
                lease = Lease(self.send_pool, users=1)
                copied = self.copies.down(input[send.first : send.last], lease.chunk[: send.last - send.first])
                copying.append((send, lease, copied))
            else:
                launch(input[send.first : send.last], send.peer, None)
        launch_copied(0)
        while flying:
            _land(flying)

    def receiving(
        self, schedule: Schedule, input: torch.Tensor, output: torch.Tensor, arrivals: Arrivals, ready: Ticket
    ) -> Ticket:
        """Everything that arrives, and what stays; returns the point after which the output is whole.

        Args:
            input, output: uint8 (bytes,).

        Raises:
            RuntimeError: a peer was lost, or something did not end in time.
        """
        self.copies.follow(ready)
        input_at, output_at, size = schedule.own
        self.copies.within(input[input_at : input_at + size], output[output_at : output_at + size])
        flying: deque[tuple[int, Receive, torch.Tensor, Lease | None, Message]] = deque()
        copying: deque[tuple[Lease, Ticket]] = deque()

        def land() -> None:
            index, receive, data, lease, message = flying.popleft()
            message.wait()
            if receive.is_passed_on:
                arrivals.put(index, data, lease)
            if lease is not None:
                copying.append((lease, self.copies.up(data, output[receive.first : receive.last])))
                free(COPIES_IN_FLIGHT - 1)

        def free(left: int) -> None:
            while len(copying) > left:
                lease, copied = copying.popleft()
                self.copies.settle(copied)
                lease.done()

        for index, receive in enumerate(schedule.receives):
            while len(flying) >= self.depth:
                land()
            data, lease = output[receive.first : receive.last], None
            if self.copies.staged:
                lease = Lease(self.receive_pool, users=2 if receive.is_passed_on else 1)
                data = lease.chunk[: receive.last - receive.first]
            flying.append((index, receive, data, lease, self.link.receive(data, receive.peer)))
        while flying:
            land()
        free(0)
        return self.copies.point()


def _land(flying: deque[tuple[Message, Lease | None]]) -> None:
    message, lease = flying.popleft()
    message.wait()
    if lease is not None:
        lease.done()
