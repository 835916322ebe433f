"""A process group's own collectives, as a transport."""

from __future__ import annotations

import torch
import torch.distributed as dist

from repro.comm.transport.contract import Handle, Transport, as_bytes

torch_all_to_all_single = dist.all_to_all_single
"""torch's own, whatever `repro.comm.traced.traced_collectives` has put in its place meanwhile."""


class ProcessGroupTransport(Transport):
    """NCCL or gloo, whichever the group is."""

    name = "process_group"

    def close(self) -> None:
        """The group is not this transport's to close."""

    def _all_to_all(self, output: torch.Tensor, input: torch.Tensor, received: list[int], sent: list[int]) -> Handle:
        return torch_all_to_all_single(
            as_bytes(output), as_bytes(input), received, sent, group=self.group, async_op=True
        )

    def _all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Handle:
        return dist.all_gather_single(as_bytes(output), as_bytes(input), group=self.group, async_op=True)


def as_transport(way: dist.ProcessGroup | Transport) -> Transport:
    """A process group as a transport; a transport as it is."""
    return way if isinstance(way, Transport) else ProcessGroupTransport(way)
