"""Starts the ranks of a measured run on this machine through torchrun, watches them, and merges their results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from repro.config import RunConfig
from repro.errors import InputError, RunError
from repro.execution.base import RunResult
from repro.execution.measured import ERROR_OF_RANK, gather

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 10
"""How long interrupted ranks may take to stop before they are killed."""


def run_measured(
    configs: Sequence[RunConfig],
    dataset: Path,
    outs: Sequence[Path],
    run_ids: Sequence[str],
    *,
    port: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[RunResult]:
    """Run the ranks of `configs`, which differ only in their arm, side by side, and merge what they recorded.

    Args:
        dataset: folder of the prepared data set.
        outs: an existing folder for each run's parts; `logs/` goes into the first.
        port: rendezvous port on the loopback interface; None takes a free one.
        on_step: called after each step of each run.

    Raises:
        InputError: the port is taken, or a rank refused its input.
        RunError: a rank failed; names the rank, its reason and the log.
    """
    logs = outs[0] / "logs"
    logs.mkdir()
    job = logs / "job.json"
    content = {
        "configs": [config.to_dict() for config in configs],
        "dataset": str(dataset),
        "outs": [str(out) for out in outs],
        "run_ids": list(run_ids),
        "logs": str(logs),
    }
    job.write_text(json.dumps(content), encoding="utf-8")
    ranks = configs[0].gpus
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        f"--master-addr={LOOPBACK}",
        f"--master-port={_port(port)}",
        "-m",
        "repro.execution.measured",
        str(job),
    ]
    log = logs / "ranks.log"
    with log.open("w", encoding="utf-8") as sink:
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env=_environment(), start_new_session=True
        )
        try:
            _follow(started, sink, on_step)
        finally:
            _stop(started)
    if started.returncode != 0:
        raise _failure(ranks, logs)
    return [gather(*run) for run in zip(configs, outs, run_ids, strict=True)]


def _port(port: int | None) -> int:
    """The given port if it is free, else a free one."""
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port or 0))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port}: cannot be used ({error}); leave it out to take a free one") from None
        chosen: int = probe.getsockname()[1]
        return chosen


def _environment() -> dict[str, str]:
    """The ranks talk over loopback, whatever this machine's host name resolves to."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def _follow(ranks: subprocess.Popen[str], log: TextIO, on_step: Callable[[], None]) -> None:
    assert ranks.stdout is not None
    for line in ranks.stdout:
        if line.strip() == "step":
            on_step()
        else:
            print(line, end="", file=log)
    ranks.wait()


def _stop(ranks: subprocess.Popen[str]) -> None:
    """Leave no rank behind, also when interrupted."""
    if ranks.poll() is None:
        os.killpg(ranks.pid, signal.SIGTERM)
        try:
            ranks.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()


def _failure(ranks: int, logs: Path) -> RunError | InputError:
    """The reason of the rank that failed first: those that lost it as a peer fail too, with less to say."""
    reasons = {}
    for rank in range(ranks):
        path = logs / ERROR_OF_RANK.format(rank=rank)
        if path.exists():
            reasons[path.stat().st_mtime_ns] = (rank, path.read_text(encoding="utf-8"))
    log = logs / "ranks.log"
    if not reasons:
        return RunError(f"a rank died without a word; see {log}")
    rank, reason = reasons[min(reasons)]
    return RunError(f"rank {rank}: {reason} (log: {log})")
