"""Starts the ranks of a measured run on this machine through torchrun, watches them, and merges their results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from repro.config import RunConfig
from repro.errors import InputError, RunError
from repro.execution.base import RunResult
from repro.execution.measured import ERROR_OF_RANK, gather

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 10
"""How long interrupted ranks may take to stop before they are killed."""


def run_measured(
    config: RunConfig,
    dataset: Path,
    out: Path,
    run_id: str,
    *,
    port: int | None = None,
    on_step: Callable[[int], None] = lambda done: None,
) -> RunResult:
    """Run `config.gpus` ranks and merge what they recorded.

    Args:
        dataset: folder of the prepared data set.
        out: existing folder for the ranks' parts and `logs/`.
        port: rendezvous port on the loopback interface; None takes a free one.
        on_step: called with the number of steps done.

    Raises:
        InputError: the port is taken, or a rank refused its input.
        RunError: a rank failed; names the rank, its reason and the log.
    """
    job = out / "job.json"
    job.write_text(
        json.dumps({"config": config.to_dict(), "dataset": str(dataset), "out": str(out), "run_id": run_id}),
        encoding="utf-8",
    )
    logs = out / "logs"
    logs.mkdir()
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={config.gpus}",
        f"--master-addr={LOOPBACK}",
        f"--master-port={_port(port)}",
        "-m",
        "repro.execution.measured",
        str(job),
    ]
    log = logs / "ranks.log"
    with log.open("w", encoding="utf-8") as sink:
        ranks = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=sink, text=True, env=_environment(), start_new_session=True
        )
        try:
            _follow(ranks, sink, on_step)
        finally:
            _stop(ranks)
    if ranks.returncode != 0:
        raise _failure(config, out, log)
    return gather(config, out, run_id)


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


def _follow(ranks: subprocess.Popen[str], log: object, on_step: Callable[[int], None]) -> None:
    assert ranks.stdout is not None
    for line in ranks.stdout:
        word, _, number = line.strip().partition(" ")
        if word == "step" and number.isdigit():
            on_step(int(number))
        else:
            print(line, end="", file=log)  # type: ignore[call-overload]
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


def _failure(config: RunConfig, out: Path, log: Path) -> RunError | InputError:
    """The first rank's own reason. Ranks that lost a peer fail too, with less to say, so the shortest list wins."""
    reasons = {}
    for rank in range(config.gpus):
        path = out / ERROR_OF_RANK.format(rank=rank)
        if path.exists():
            reasons[path.stat().st_mtime_ns] = (rank, path.read_text(encoding="utf-8"))
    if not reasons:
        return RunError(f"a rank died without a word; see {log}")
    rank, reason = reasons[min(reasons)]
    return RunError(f"rank {rank}: {reason} (log: {log})")
