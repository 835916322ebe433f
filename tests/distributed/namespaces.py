"""Runs one test body on ranks in a shaped network: `run_shaped(network, body)` returns what the body returned on each.

As `tests.distributed.ranks`, but each rank is started as the launcher starts it, in its own network namespace. Bodies
are module-level functions `body(groups, device, *arguments)`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from repro.comm.groups import process_groups
from repro.config import NetworkConfig
from repro.device.cpu import CpuDevice
from repro.launch.local import Start, in_namespaces, run_processes
from repro.launch.network import Network, joined, obstacle

ROOT = Path(__file__).resolve().parents[2]

shapes = pytest.mark.skipif(obstacle() is not None, reason=str(obstacle()))
"""Marks tests that need a machine on which networks can be shaped."""


@contextmanager
def shaped(rate_mbit: float, ranks: int, **more: float) -> Iterator[Network]:
    """A shaped network; skips the test where the machine refuses one."""
    with joined(NetworkConfig(rate_mbit=rate_mbit, **more), ranks) as network:
        if not network.namespaces:
            pytest.skip(network.notes[0])
        yield network


def starts(network: Network, folder: Path, body: Callable[..., Any], *arguments: Any) -> list[Start]:
    """Processes that run `body` and leave what it returns in `folder`."""
    (folder / "body.pickle").write_bytes(pickle.dumps((body, arguments)))
    ranks = in_namespaces(network, ["-m", "tests.distributed.namespaces", str(folder)])
    where = os.pathsep.join([str(ROOT), *sys.path])  # pytest imports test modules by their bare names
    return [replace(start, variables={**start.variables, "PYTHONPATH": where}) for start in ranks]


def run_shaped(network: Network, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of `body` by rank; a rank that fails fails the test with what all of them wrote."""
    with TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "log"
        with log.open("w") as sink:
            died = run_processes(starts(network, folder, body, *arguments), sink, lambda: None)
        assert died is None, f"{died}\n{log.read_text()}"
        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(len(network.namespaces))]


def _rank(folder: Path) -> None:
    body, arguments = pickle.loads((folder / "body.pickle").read_bytes())
    torch.set_num_threads(1)
    with process_groups(CpuDevice()) as groups:
        torch.save(body(groups, CpuDevice(), *arguments), folder / f"{groups.rank}.pt")


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
