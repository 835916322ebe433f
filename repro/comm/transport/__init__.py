"""Transports: what moves the bytes of collectives that do not add, behind one contract.

    process_group  the group's own collectives: NCCL takes SMs for them, gloo takes host cores
    host_ring      copies to host memory, a ring of chunks over CPU groups, copies back: no SMs (paper, technique 3)
    copy_engine    PyTorch symmetric memory, inside one NVLink domain
    zero_cta       NCCL's own zero-SM policy, equal splits only, hence padded

Collectives with reduction (the dense AllReduce) always stay on the process group: asking a transport for one is an
error. Every rank must make the same calls on a transport in the same order; two transports know nothing of each other.

    transport = HostRing.connect(torch.device("cpu"))      # on every rank
    handle = transport.all_to_all_single(output, input, received, sent)
    ...                                                    # it progresses meanwhile
    handle.wait()

Source: paper, technique 3, https://arxiv.org/abs/2604.24073.
"""

from repro.comm.transport.contract import Handle, Transport, row_splits
from repro.comm.transport.process_group import ProcessGroupTransport, as_transport

__all__ = ["Handle", "ProcessGroupTransport", "Transport", "as_transport", "row_splits"]
