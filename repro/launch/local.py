"""Starts the ranks of a measured or emulated run on this machine, watches them, and merges their results.

On plain loopback torchrun starts them. In a shaped network each rank is started in its own network namespace, with the
variables that torchrun would set: torchrun's agents do not find each other across namespaces.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

from repro.config import RunConfig
from repro.data.schema import read_manifest
from repro.errors import InputError, RunError
from repro.execution import emulated
from repro.execution.assignment import Assignment
from repro.execution.base import RunResult
from repro.execution.measured import ERROR_OF_RANK, REFUSAL_OF_RANK
from repro.execution.parts import gather
from repro.launch.network import INTERFACE, Network, address, joined
from repro.launch.provenance import code_fingerprint, versions
from repro.pipeline.checkpoint_folder import belonging, check, newest

LOOPBACK = "127.0.0.1"
JOB = "job.json"
"""Name of the file that tells ranks what to do, in `logs/`."""
NAMESPACE_PORT = 29500
"""Rendezvous port where none is asked for: a fresh namespace has all ports free."""
STOP_SECONDS = 10
"""How long interrupted ranks may take to stop before they are killed."""
POLL_SECONDS = 0.1


def run_on_ranks(
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
        port: rendezvous port; None takes a free one.
        on_step: called after each step of each run.

    Raises:
        InputError: the port is taken, a checkpoint to go on from does not fit, or a rank refused its input.
        RunError: a rank failed; names the rank, its reason and the log.
    """
    logs = outs[0] / "logs"
    job = write_job(configs, dataset, outs, run_ids)
    first = configs[0]
    is_emulated = first.mode == "emulated"
    rank = ["-m", "repro.execution.emulated" if is_emulated else "repro.execution.measured", str(job)]
    notes: tuple[str, ...] = (emulated.note(first),) if is_emulated else ()
    with joined(first.network, first.gpus, on_gpus=torch.cuda.is_available() and not is_emulated) as network:
        starts = (
            in_namespaces(network, rank, port or NAMESPACE_PORT)
            if network.namespaces
            else [_under_torchrun(first.gpus, rank, _port(port))]
        )
        with (logs / "ranks.log").open("w", encoding="utf-8") as sink:
            died = run_processes(starts, sink, on_step)
        notes += network.notes
    if died is not None:
        raise _failure(first.gpus, logs, died)
    results = [gather(*run) for run in zip(configs, outs, run_ids, strict=True)]
    return [dataclasses.replace(result, notes=(*notes, *result.notes)) for result in results]


def write_job(configs: Sequence[RunConfig], dataset: Path, outs: Sequence[Path], run_ids: Sequence[str]) -> Path:
    """Make `logs/` in the first of `outs`, and in it the file that tells ranks what to do; returns the file's path.
    A run goes on from the newest checkpoint in its folder.

    Raises:
        InputError: a checkpoint is damaged, or belongs to another run.
    """
    data_set = read_manifest(dataset).fingerprint
    runs = []
    for config, out, run_id in zip(configs, outs, run_ids, strict=True):
        belongs_to = belonging(config, data_set, versions(config.mode), code_fingerprint(config.mode))
        checkpoint = newest(out)
        if checkpoint is not None:
            check(checkpoint, belongs_to)
        runs.append(Assignment(config=config, out=out, run_id=run_id, belongs_to=belongs_to, checkpoint=checkpoint))
    logs = outs[0] / "logs"
    logs.mkdir()
    job = logs / JOB
    content = {"runs": [run.to_dict() for run in runs], "dataset": str(dataset), "logs": str(logs)}
    job.write_text(json.dumps(content), encoding="utf-8")
    return job


@dataclass(frozen=True)
class Start:
    """A process to start."""

    command: list[str]
    variables: dict[str, str]
    """Of its environment, beside those of the launcher's."""
    rank: int | None
    """None: it looks after all of them."""


@dataclass(frozen=True)
class Died:
    """The process that failed first."""

    rank: int | None
    code: int
    """Exit code; minus the signal that killed it."""


def _port(port: int | None) -> int:
    """The given port if it is free, else a free one."""
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port or 0))
        except (OSError, OverflowError) as error:
            raise InputError(f"--port {port}: cannot be used ({error}); leave it out to take a free one") from None
        chosen: int = probe.getsockname()[1]
        return chosen


def _under_torchrun(ranks: int, arguments: list[str], port: int) -> Start:
    """The ranks talk over loopback, whatever this machine's host name resolves to."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    options = [f"--nproc-per-node={ranks}", f"--master-addr={LOOPBACK}", f"--master-port={port}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *arguments]
    return Start(command, {"GLOO_SOCKET_IFNAME": loopback}, rank=None)


def in_namespaces(network: Network, arguments: list[str], port: int = NAMESPACE_PORT) -> list[Start]:
    """One process a rank, `python ARGUMENTS`, each in its namespace."""
    world = str(len(network.namespaces))
    return [
        Start(
            network.command(rank, [sys.executable, *arguments]),
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": world,
                "LOCAL_WORLD_SIZE": world,
                "MASTER_ADDR": address(0),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": INTERFACE,
            },
            rank,
        )
        for rank in range(len(network.namespaces))
    ]


def run_processes(starts: Sequence[Start], log: TextIO, on_step: Callable[[], None]) -> Died | None:
    """Start the processes, wait for their end, and leave none behind, also when interrupted. One that fails ends all.

    Args:
        log: takes what they write, but for `step` lines of the first, which become calls of `on_step`.
    """
    started: list[subprocess.Popen[str]] = []
    try:
        for start in starts:
            variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **start.variables}
            out = subprocess.PIPE if not started else log
            started.append(
                subprocess.Popen(
                    start.command, stdout=out, stderr=log, text=True, env=variables, start_new_session=True
                )
            )
        failed: list[Died] = []
        watcher = threading.Thread(target=_watch, args=(started, starts, failed), daemon=True)
        watcher.start()
        _follow(started[0], log, on_step)
        watcher.join()
    finally:
        _stop(started)
    return failed[0] if failed else None


def _follow(first: subprocess.Popen[str], log: TextIO, on_step: Callable[[], None]) -> None:
    assert first.stdout is not None
    for line in first.stdout:
        if line.strip() == "step":
            on_step()
        else:
            print(line, end="", file=log)


def _watch(started: list[subprocess.Popen[str]], starts: Sequence[Start], failed: list[Died]) -> None:
    """Until all have ended well, or one has failed; then none is left running."""
    while True:
        codes = [process.poll() for process in started]
        dead = [Died(start.rank, code) for start, code in zip(starts, codes, strict=True) if code]
        if dead:
            # Whoever was killed comes before those that lost it as a peer.
            failed.append(min(dead, key=lambda died: died.code))
            _stop(started)
            return
        if None not in codes:
            return
        time.sleep(POLL_SECONDS)


def _stop(started: list[subprocess.Popen[str]]) -> None:
    for process in started:
        _signal(process, signal.SIGTERM)
    give_up = time.monotonic() + STOP_SECONDS
    for process in started:
        try:
            process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the process and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def _failure(ranks: int, logs: Path, died: Died) -> RunError | InputError:
    """The reason of the rank that failed first: those that lost it as a peer fail too, with less to say."""
    log = logs / "ranks.log"
    if died.rank is not None and died.code < 0:
        return RunError(f"rank {died.rank}: killed by {signal.Signals(-died.code).name} (log: {log})")
    found = reason_of_ranks(ranks, logs)
    if found is None:
        return RunError(f"a rank died without a word; see {log}")
    text = f"rank {found.rank}: {found.text} (log: {log})"
    return InputError(text) if found.refused else RunError(text)


@dataclass(frozen=True)
class Reason:
    """Why a rank failed, in its own words."""

    rank: int
    text: str
    refused: bool
    """It would not take its input."""


def reason_of_ranks(ranks: int, logs: Path) -> Reason | None:
    """Of the first that said why it failed; None if none did."""
    reasons = {}
    for rank in range(ranks):
        for name, refused in ((ERROR_OF_RANK, False), (REFUSAL_OF_RANK, True)):
            path = logs / name.format(rank=rank)
            if path.exists():
                reasons[path.stat().st_mtime_ns] = Reason(rank, path.read_text(encoding="utf-8"), refused)
    return reasons[min(reasons)] if reasons else None
