"""The real things `repro doctor` tries, each in a process of its own: broken libraries crash, broken networks hang.

    python probes.py operators
    python probes.py transports
    python probes.py rank RANK WORLD BACKEND RENDEZVOUS_FILE

Exit code 0 and a line on stdout when it works; else the last line on stderr says why.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch


def operators() -> str:
    """Run an FBGEMM operator, on the GPU too where torch sees one, and import TorchRec."""
    import fbgemm_gpu  # noqa: F401  (registers the operators)
    import torchrec  # noqa: F401

    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        lengths = torch.tensor([2, 0, 3], device=device)
        offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(lengths).tolist()
        if offsets != [0, 2, 2, 5]:
            raise SystemExit(f"FBGEMM's cumulative sum of [2, 0, 3] on {device} is {offsets}, not [0, 2, 2, 5]")
    return f"FBGEMM computes on {' and '.join(devices)}, TorchRec imports"


def transports() -> str:
    """What each transport lacks on this machine, as a JSON object by name; an empty text where it works."""
    from repro.comm.transport.availability import available

    return json.dumps({way.name: way.missing for way in available()})


def rank(rank: int, world: int, backend: str, rendezvous: str) -> str:
    """Be one rank of a group that exchanges uneven numbers of rows: rank r sends r + 2 p rows to peer p."""
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    # The caller's time limit is the one that counts.
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(minutes=5)
    )
    sends = [rank + 2 * peer for peer in range(world)]
    receives = [peer + 2 * rank for peer in range(world)]
    sent = torch.cat([torch.full((rows,), 10 * rank + peer, device=device) for peer, rows in enumerate(sends)])
    received = sent.new_empty(sum(receives))
    dist.all_to_all_single(received, sent, receives, sends)
    expected = [10 * peer + rank for peer, rows in enumerate(receives) for _ in range(rows)]
    if received.tolist() != expected:
        raise SystemExit(f"rank {rank} received {received.tolist()}, not {expected}")
    dist.destroy_process_group()
    return "exchanged"


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "operators":
        print(operators())
    elif what == "transports":
        print(transports())
    else:
        print(rank(int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]))
