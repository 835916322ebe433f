"""Runs the ranks of a measured run as a Slurm job: submits, follows, cancels, and merges what the ranks recorded.

Follows a job through squeue and scontrol, not sacct, so that clusters without accounting serve. The results folder, the
prepared data and Python must lie where all nodes see them.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from repro.config import RunConfig
from repro.errors import InputError, RunError
from repro.execution.base import RunResult
from repro.execution.parts import gather
from repro.launch.local import JOB, reason_of_ranks, write_job
from repro.launch.runs import jobs, partial_of, run_id
from repro.launch.sbatch import EXIT_CODE, JOB_LOG, RANK_LOG, REFUSED, SCRIPT, SlurmSettings, nodes_of, render

PYTHON_PATH = Path(__file__).resolve().parents[2]
POLL_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""How long Slurm's controller may not answer before a run is given up: one that restarts answers again."""
LEAVE_SECONDS = 30.0
"""How long a cancelled job may take to leave the queue, and a file to come through a shared file system."""
COMMAND_SECONDS = 30
_DIED = {"CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
_OVER = _DIED | {"COMPLETED", "FAILED"}
_GONE = "gone"
"""Slurm has forgotten the job."""


def run_on_slurm(
    configs: Sequence[RunConfig],
    dataset: Path,
    outs: Sequence[Path],
    run_ids: Sequence[str],
    *,
    settings: SlurmSettings,
    port: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[RunResult]:
    """As `repro.launch.local.run_on_ranks`, in a Slurm job that is waited for, and cancelled when interrupted.

    Raises:
        InputError: Slurm is not here or refused the job, or a rank refused its input.
        RunError: the job or a rank failed; names the job, the reason and the log.
    """
    outs = [out.resolve() for out in outs]
    logs = outs[0] / "logs"
    text = script(configs, logs, run_ids[0], settings, port)
    write_job(configs, dataset.resolve(), outs, run_ids)
    path = logs / SCRIPT
    path.write_text(text, encoding="utf-8")
    job = _submit(path)
    try:
        state = _follow(job, logs, on_step)
    except BaseException:
        _cancel(job)
        raise
    _check(job, state, logs, configs[0].gpus)
    nodes, each = nodes_of(configs[0].gpus, settings)
    note = f"Slurm job of {nodes} nodes with {each} ranks each"
    results = [gather(*run) for run in zip(configs, outs, run_ids, strict=True)]
    return [_noted(result, note) for result in results]


def script(
    configs: Sequence[RunConfig], logs: Path, name: str, settings: SlurmSettings, port: int | None = None
) -> str:
    """The job's script, as `repro.launch.sbatch.render` makes it."""
    command = [sys.executable, "-m", "repro.execution.measured", str(logs / JOB)]
    return render(f"repro-{name}", configs[0].gpus, command, settings, logs, PYTHON_PATH, port)


def scripts(configs: Sequence[RunConfig], results: Path, settings: SlurmSettings, port: int | None = None) -> list[str]:
    """The script of each job that `run_all` would submit for the measured runs among `configs`, in order.

    Raises:
        InputError: none is measured, or as `render` raises.
    """
    rendered = []
    for job in jobs(configs):
        if job[0].mode == "measured":
            name = run_id(job[0])
            folder = partial_of(results.resolve() / "runs" / job[0].experiment / name)
            rendered.append(script(job, folder / "logs", name, settings, port))
    if not rendered:
        raise InputError("--executor slurm: takes measured runs, and there are none here; leave it out")
    return rendered


def _noted(result: RunResult, note: str) -> RunResult:
    return dataclasses.replace(result, notes=(note, *result.notes))


def _submit(path: Path) -> str:
    """Id of the job made of the script at `path`."""
    if shutil.which("sbatch") is None:
        raise InputError("--executor slurm: there is no sbatch here; use a login node of a Slurm cluster")
    done = _slurm("sbatch", "--parsable", str(path))
    job = done.stdout.strip().split(";")[0]
    if done.returncode or not re.fullmatch(r"[0-9]+", job):
        said = [line.removeprefix("sbatch: error: ") for line in (done.stderr or done.stdout).splitlines()]
        reason = next((line for line in said if line.startswith("Batch job submission failed")), (said or ["?"])[-1])
        raise InputError(f"sbatch refused the job: {reason}; see --slurm KEY=VALUE, and {path}")
    return job


def _follow(job: str, logs: Path, on_step: Callable[[], None]) -> str:
    """The job's last state, when it has one; calls `on_step` as rank 0 writes `step` lines."""
    counted, answered = 0, time.monotonic()
    while True:
        state = _state(job)
        if state is not None:
            answered = time.monotonic()
        elif time.monotonic() - answered > QUIET_SECONDS:
            raise RunError(f"Slurm's controller has not answered for {QUIET_SECONDS:g} s; job {job} was given up")
        steps = _steps(logs)
        for _ in range(steps - counted):
            on_step()
        counted = max(counted, steps)
        if state == _GONE or state in _OVER:
            return state
        time.sleep(POLL_SECONDS)


def _state(job: str) -> str | None:
    """Slurm's word for the job's state, `gone` when it knows the job no more, None when it does not answer."""
    done = _slurm("scontrol", "show", "job", "--oneliner", job)
    if done.returncode:
        return _GONE if "Invalid job id" in done.stderr else None
    found = re.search(r"\bJobState=(\w+)", done.stdout)
    return found[1] if found else None


def _steps(logs: Path) -> int:
    path = logs / RANK_LOG.format(rank=0)
    return path.read_text(encoding="utf-8", errors="replace").splitlines().count("step") if path.exists() else 0


def _cancel(job: str) -> None:
    """Cancel the job, and wait until none of its processes can write any more."""
    _slurm("scancel", job)
    give_up = time.monotonic() + LEAVE_SECONDS
    while time.monotonic() < give_up:
        done = _slurm("squeue", "--noheader", "--jobs", job, "--format", "%T")
        if done.returncode or not done.stdout.strip():
            return
        time.sleep(POLL_SECONDS)
    print(f"Slurm job {job} is still in the queue {LEAVE_SECONDS:g} s after scancel", file=sys.stderr)


def _check(job: str, state: str, logs: Path, ranks: int) -> None:
    """Raise what there is to say of a job that did not end well."""
    refused = logs / REFUSED
    code = _exit_code(logs) if state in (_GONE, "COMPLETED", "FAILED") else None
    if state == "TIMEOUT":
        raise RunError(f"Slurm job {job} ran into its time limit; ask for more with --slurm time=... (log: {logs})")
    if state in _DIED:
        raise RunError(
            f"Slurm job {job} ended as {state}; the same command goes on from its newest checkpoint, "
            f"or starts anew (log: {logs})"
        )
    if code == 0:
        return
    if refused.exists():
        raise RunError(f"Slurm job {job}: {refused.read_text(encoding='utf-8').strip()} (log: {logs / JOB_LOG})")
    found = reason_of_ranks(ranks, logs)
    if found is not None:
        raise RunError(f"Slurm job {job}: rank {found[0]}: {found[1]} (log: {logs / RANK_LOG.format(rank=found[0])})")
    if code is None:
        raise RunError(
            f"Slurm job {job} left no exit code in {logs}; is the folder on a file system that all nodes share?"
        )
    raise RunError(f"Slurm job {job}: a rank died without a word, exit code {code}; see {logs}")


def _exit_code(logs: Path) -> int | None:
    """Of the script; waits a little, since a file that another node wrote may come late."""
    give_up = time.monotonic() + LEAVE_SECONDS
    while not (logs / EXIT_CODE).exists():
        if time.monotonic() > give_up:
            return None
        time.sleep(POLL_SECONDS)
    return int((logs / EXIT_CODE).read_text(encoding="utf-8"))


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`; a command that does not end in time has exit code 124."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"{command[0]} did not answer in {COMMAND_SECONDS} s")
