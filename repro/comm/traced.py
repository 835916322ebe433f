"""Collectives that leave spans.

TorchRec issues its AllToAlls through `torch.distributed.all_to_all_single`, so that is where they are observed: for the
duration of a run the function is replaced by one that records arrival, bytes and completion and otherwise does
the same. What a collective *is* follows from what it carries, since only TorchRec's embedding exchange goes through
there: integers with equal splits are split sizes, integers with uneven splits are ids, floats in forward are
embeddings, floats in backward are gradients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from repro.comm.groups import Way
from repro.comm.transport import Handle, ProcessGroupTransport, Transport, as_transport
from repro.comm.transport.process_group import torch_all_to_all_single
from repro.pipeline.ops import Op
from repro.timeline.recorder import OpenCollective, Recorder


class TracedWork(dist.Work):
    """A collective in flight whose waits are recorded."""

    def __init__(self, work: Handle, collective: OpenCollective, recorder: Recorder) -> None:
        super().__init__()
        self._work = work
        self._collective = collective
        self._recorder = recorder

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As `torch.distributed.Work.wait`."""
        with self._recorder.waiting():
            done = self._work.wait() if timeout is None else self._work.wait(timeout)
            self._recorder.complete(self._collective)
        if self._collective.op is Op.GRADIENT_ALL_TO_ALL:
            self._recorder.switch(Op.ROW_UPDATE)
        return bool(done)

    def is_completed(self) -> bool:
        """As `torch.distributed.Work.is_completed`."""
        return bool(self._work.is_completed())

    def get_future(self) -> torch.futures.Future[Any]:
        """As `torch.distributed.Work.get_future`."""
        return self._work.get_future()


def stamp_completion(work: Handle, collective: OpenCollective, sample: torch.Tensor) -> None:
    """Note when a host collective ends, even if nobody waits for it then. On a GPU the wait's event stands for it."""
    if sample.device.type == "cpu":

        def note(_future: object) -> None:
            collective.completed = time.perf_counter_ns()

        work.get_future().add_done_callback(note)


class PendingGather:
    """An AllGather in flight."""

    def __init__(self, work: TracedWork, gathered: torch.Tensor) -> None:
        self._work = work
        self._gathered = gathered

    def wait(self) -> torch.Tensor:
        """Parts of all ranks, (world, N, ...)."""
        self._work.wait()
        return self._gathered


def start_all_gather(tensor: torch.Tensor, op: Op, way: Way, recorder: Recorder) -> PendingGather:
    """AllGather equal-shaped tensors, asynchronously.

    Args:
        tensor: this rank's part, (N, ...), of the same shape on all ranks.
        way: what moves it.
    """
    transport = as_transport(way)
    world = transport.world
    gathered = tensor.new_empty((world, *tensor.shape))
    collective = recorder.arrive(
        op,
        sent_bytes=tensor.nbytes * (world - 1),
        on_device=tensor.device.type != "cpu",
        overlap_allowed=True,
        transport=_name(way),
    )
    work = transport.all_gather(gathered.flatten(0, 1), tensor)
    stamp_completion(work, collective, tensor)
    return PendingGather(TracedWork(work, collective, recorder), gathered)


class CollectiveInFlight:
    """An AllToAll in flight."""

    def __init__(self, work: Handle, collective: OpenCollective, recorder: Recorder) -> None:
        self._work = work
        self._traced = TracedWork(work, collective, recorder)
        self._collective = collective
        self._recorder = recorder

    def wait(self) -> None:
        """Block the main thread until it has ended; the wait is recorded."""
        self._traced.wait()

    def finish(self) -> None:
        """Block a lane's thread until it has ended; nothing else waits."""
        self._work.wait()
        self._recorder.complete(self._collective)


def start_all_to_all(
    output: torch.Tensor,
    input: torch.Tensor,
    output_splits: list[int],
    input_splits: list[int],
    op: Op,
    way: Way,
    recorder: Recorder,
    step: int | None = None,
) -> CollectiveInFlight:
    """AllToAll with uneven splits, asynchronously; splits count rows of dimension 0, one entry a rank.

    Args:
        way: what moves it.
        step: as in `Recorder.arrive`; needed when a lane's thread issues it.
    """
    transport = as_transport(way)
    collective = recorder.arrive(
        op,
        sent_bytes=_sent_bytes(input, input_splits, transport.group),
        on_device=input.device.type != "cpu",
        overlap_allowed=True,
        step=step,
        transport=_name(way),
    )
    work = transport.all_to_all_single(output, input, output_splits, input_splits)
    stamp_completion(work, collective, input)
    return CollectiveInFlight(work, collective, recorder)


def _name(way: Way) -> str | None:
    """None for a process group: the recorder knows which backend that is."""
    return way.name if isinstance(way, Transport) and not isinstance(way, ProcessGroupTransport) else None


@contextmanager
def traced_collectives(recorder: Recorder) -> Iterator[None]:
    """Record every AllToAll that TorchRec issues inside."""

    def all_to_all_single(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None,
        group: dist.ProcessGroup | None = None,
        async_op: bool = False,
    ) -> dist.Work | None:
        op = _embedding_collective(input, input_split_sizes, recorder)
        collective = recorder.arrive(
            op,
            sent_bytes=_sent_bytes(input, input_split_sizes, group),
            on_device=input.device.type != "cpu",
            overlap_allowed=async_op,
        )
        work = torch_all_to_all_single(output, input, output_split_sizes, input_split_sizes, group=group, async_op=True)
        stamp_completion(work, collective, input)
        traced = TracedWork(work, collective, recorder)
        if async_op:
            return traced
        traced.wait()
        return None

    dist.all_to_all_single = all_to_all_single
    try:
        yield
    finally:
        dist.all_to_all_single = torch_all_to_all_single


def _embedding_collective(input: torch.Tensor, splits: list[int] | None, recorder: Recorder) -> Op:
    if not input.is_floating_point():
        return Op.ID_SPLITS_ALL_TO_ALL if splits is None else Op.ID_ALL_TO_ALL
    in_backward = recorder.running in (Op.DENSE_BACKWARD, Op.ROW_UPDATE)
    return Op.GRADIENT_ALL_TO_ALL if in_backward else Op.EMBEDDING_ALL_TO_ALL


def _sent_bytes(input: torch.Tensor, splits: list[int] | None, group: dist.ProcessGroup | None) -> int:
    """Bytes that leave this rank: its own share stays."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    per_row = input.nbytes // input.shape[0] if input.shape[0] else 0
    own = input.shape[0] // world if splits is None else splits[rank]
    return (input.shape[0] - own) * per_row
