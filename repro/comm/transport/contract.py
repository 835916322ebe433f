"""What every transport does, and what none does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from repro.errors import RunError


class Handle(Protocol):
    """A collective in flight; `torch.distributed.Work` is one."""

    def wait(self, timeout: timedelta = ...) -> bool:
        """Return when its output may be used: at once on the host, in stream order on a GPU.

        Raises:
            RuntimeError: it failed, or took longer than the transport's timeout (`repro.comm.faults.blame` says who).
        """

    def is_completed(self) -> bool:
        """Whether it has ended. On the host only `host_ring` knows without being waited for."""

    def get_future(self) -> torch.futures.Future[Any]:
        """Done when it has ended, whether or not anybody waits."""


class Transport(ABC):
    """Moves tensors between the ranks of a group, asynchronously."""

    name: str
    """Stable; spans and results carry it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        """Its ranks, for numbering and for saying who failed. Bytes need not move through it."""
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.sent_bytes = 0
        """That left this rank so far, payload alone."""
        self.received_bytes = 0
        """That came from other ranks so far, payload alone."""

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
    ) -> Handle:
        """As `torch.distributed.all_to_all_single`, asynchronous. `input` must not change before it has ended.

        Args:
            output: contiguous, (rows received, ...), any dtype, the dtype and row shape of `input`.
            input: (rows sent, ...).
            output_splits, input_splits: rows from and to each rank, one entry a rank; None: equal shares.

        Raises:
            ValueError: tensors or splits do not fit each other.
        """
        received = row_splits(output, output_splits, self.world, "output")
        sent = row_splits(input, input_splits, self.world, "input")
        _require_alike(output, input)
        self._count(received, sent)
        return self._all_to_all(output, input.contiguous(), received, sent)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Handle:
        """As `torch.distributed.all_gather_into_tensor`, asynchronous. `input` must not change before it has ended.

        Args:
            output: contiguous, (world x N, ...), rank by rank.
            input: (N, ...), of one shape on all ranks.

        Raises:
            ValueError: the tensors do not fit each other.
        """
        _require_alike(output, input)
        if output.numel() != self.world * input.numel():
            raise ValueError(f"all_gather of {input.numel()} values to {self.world} ranks, output of {output.numel()}")
        others = input.nbytes * (self.world - 1)
        self.sent_bytes += others
        self.received_bytes += others
        return self._all_gather(output, input.contiguous())

    def all_reduce(self, *_: Any, **__: Any) -> Handle:
        """Never.

        Raises:
            RunError: always.
        """
        raise RunError(f"{self.name} moves bytes and does not add: all_reduce stays on the process group")

    def reduce_scatter(self, *_: Any, **__: Any) -> Handle:
        """Never.

        Raises:
            RunError: always.
        """
        raise RunError(f"{self.name} moves bytes and does not add: reduce_scatter stays on the process group")

    @abstractmethod
    def close(self) -> None:
        """Let go of threads and connections. Nothing may be in flight."""

    @abstractmethod
    def _all_to_all(
        self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int]
    ) -> Handle: ...

    @abstractmethod
    def _all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Handle: ...

    def _count(self, received: list[int], sent: list[int]) -> None:
        self.sent_bytes += sum(sent) - sent[self.rank]
        self.received_bytes += sum(received) - received[self.rank]


def row_splits(tensor: torch.Tensor, splits: Sequence[int] | None, world: int, name: str) -> list[int]:
    """Bytes of each rank's share of a tensor whose rows are split.

    Args:
        splits: rows, one entry a rank; None: equal shares.
        name: of the tensor, for the message.

    Raises:
        ValueError: they are not as many as ranks, or do not add up to the rows.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits is None:
        if rows % world:
            raise ValueError(f"{name} of {rows} rows cannot be split equally among {world} ranks")
        splits = [rows // world] * world
    if len(splits) != world or sum(splits) != rows or min(splits) < 0:
        raise ValueError(f"{name} of {rows} rows among {world} ranks: splits {list(splits)} do not fit")
    per_row = tensor.nbytes // rows if rows else 0
    return [count * per_row for count in splits]


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, uint8 (bytes,)."""
    if tensor.numel() == 0:  # may have strides that no view of other size accepts
        return tensor.new_empty(0, dtype=torch.uint8)
    return tensor.detach().view(-1).view(torch.uint8)


def _require_alike(output: torch.Tensor, input: torch.Tensor) -> None:
    if output.dtype != input.dtype or output.device != input.device:
        raise ValueError(
            f"output is {output.dtype} on {output.device}, input is {input.dtype} on {input.device}; they must agree"
        )
    if not output.is_contiguous():
        raise ValueError("output must be contiguous")
