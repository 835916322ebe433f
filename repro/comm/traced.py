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

from repro.pipeline.ops import Op
from repro.timeline.recorder import OpenCollective, Recorder


class TracedWork(dist.Work):
    """A collective in flight whose waits are recorded."""

    def __init__(self, work: dist.Work, collective: OpenCollective, recorder: Recorder) -> None:
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


def stamp_completion(work: dist.Work, collective: OpenCollective, sample: torch.Tensor) -> None:
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


def start_all_gather(tensor: torch.Tensor, op: Op, group: dist.ProcessGroup, recorder: Recorder) -> PendingGather:
    """AllGather equal-shaped tensors, asynchronously.

    Args:
        tensor: this rank's part, (N, ...), of the same shape on all ranks.
    """
    world = dist.get_world_size(group)
    gathered = tensor.new_empty((world, *tensor.shape))
    collective = recorder.arrive(
        op,
        sent_bytes=tensor.nbytes * (world - 1),
        on_device=tensor.device.type != "cpu",
        overlap_allowed=True,
    )
    work = dist.all_gather_single(gathered.flatten(0, 1), tensor.contiguous(), group=group, async_op=True)
    stamp_completion(work, collective, tensor)
    return PendingGather(TracedWork(work, collective, recorder), gathered)


_ALL_TO_ALL = dist.all_to_all_single
"""torch's own, whatever `traced_collectives` has put in its place meanwhile."""


class CollectiveInFlight:
    """An AllToAll in flight."""

    def __init__(self, work: dist.Work, collective: OpenCollective, recorder: Recorder) -> None:
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
    group: dist.ProcessGroup,
    recorder: Recorder,
    step: int | None = None,
) -> CollectiveInFlight:
    """AllToAll with uneven splits, asynchronously; splits count rows of dimension 0, one entry a rank.

    Args:
        step: as in `Recorder.arrive`; needed when a lane's thread issues it.
    """
    collective = recorder.arrive(
        op,
        sent_bytes=_sent_bytes(input, input_splits, group),
        on_device=input.device.type != "cpu",
        overlap_allowed=True,
        step=step,
    )
    work = _ALL_TO_ALL(output, input, output_splits, input_splits, group=group, async_op=True)
    stamp_completion(work, collective, input)
    return CollectiveInFlight(work, collective, recorder)


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
        work = _ALL_TO_ALL(output, input, output_split_sizes, input_split_sizes, group=group, async_op=True)
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
        dist.all_to_all_single = _ALL_TO_ALL


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
