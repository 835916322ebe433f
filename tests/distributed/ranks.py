"""Runs one test body on real ranks: `run_ranks(body, world=2)` returns what the body returned on each.

The backend is that of the machine: gloo on CPUs, NCCL where every rank has a GPU. Bodies are module-level functions
`body(groups, device, *arguments)`; their results must be picklable.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.multiprocessing as mp

from repro.comm.groups import process_groups
from repro.device import Device, local_device
from repro.device.cpu import CpuDevice

LOOPBACK = "127.0.0.1"

# Ranks are forked from a process that has these loaded already: importing them takes longer than most bodies.
multiprocessing.set_forkserver_preload(["repro.pipeline.train_step", "tests.samples"])


def run_ranks(body: Callable[..., Any], *arguments: Any, world: int) -> list[Any]:
    """Results of `body` by rank, None for a rank that left without returning.

    An assertion that fails on a rank fails the test with that rank's traceback.
    """
    with socket.socket() as probe, TemporaryDirectory() as folder:
        probe.bind((LOOPBACK, 0))
        port = probe.getsockname()[1]
        probe.close()
        arguments_of_rank = (world, port, folder, body, arguments)
        mp.start_processes(_rank, args=arguments_of_rank, nprocs=world, start_method="forkserver")
        left = [Path(folder) / f"{rank}.pt" for rank in range(world)]
        return [torch.load(path, weights_only=False) if path.exists() else None for path in left]


def _rank(rank: int, world: int, port: int, folder: str, body: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        MASTER_ADDR=LOOPBACK,
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME=next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo"),
    )
    torch.set_num_threads(1)
    device = _device(rank, world)
    with process_groups(device) as groups:
        torch.save(body(groups, device, *arguments), Path(folder) / f"{rank}.pt")


def _device(rank: int, world: int) -> Device:
    return local_device(rank) if torch.cuda.device_count() >= world else CpuDevice()
