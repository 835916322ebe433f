"""Runs the ranks of a measured run as a Slurm job: submits, follows, cancels, and merges what the ranks recorded.

The results folder, the prepared data and Python must lie where all nodes see them.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from repro.config import RunConfig
from repro.errors import InputError, RunError
from repro.execution.base import RunResult
from repro.execution.parts import gather
from repro.launch.interrupts import Interrupts
from repro.launch.local import JOB, write_job
from repro.launch.runs import jobs, partial_of, run_id
from repro.launch.sbatch import EXIT_CODE, RANK_LOG, SCRIPT, nodes_of, render
from repro.launch.slurm_queue import JobState, cancel, state_of, submit
from repro.launch.slurm_settings import SlurmSettings
from repro.launch.slurm_verdict import check

PYTHON_PATH = Path(__file__).resolve().parents[2]
POLL_SECONDS, MOST_POLL_SECONDS = 1.0, 15.0
"""How often the job's files are looked at, and how rarely, in the end, Slurm is asked about a job that does not change:
a controller serves thousands."""
QUIET_SECONDS = 120.0
"""How long Slurm's controller may not answer before a run is given up: one that restarts answers again."""


def _say(text: str) -> None:
    with tqdm.external_write_mode():
        print(text, flush=True)


def run_on_slurm(
    configs: Sequence[RunConfig],
    dataset: Path,
    outs: Sequence[Path],
    run_ids: Sequence[str],
    *,
    settings: SlurmSettings,
    port: int | None = None,
    on_step: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = _say,
) -> list[RunResult]:
    """As `repro.launch.local.run_on_ranks`, in a Slurm job that is waited for, and cancelled when interrupted.

    Args:
        say: told where the job stands, whenever that changes.

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
    job = None
    with Interrupts() as interrupts:
        try:
            with interrupts.held():
                job = submit(path, settings)
            state = _follow(job, logs, on_step, say)
        except BaseException:
            if job is not None:
                cancel(job)
            raise
    check(job, state, logs, configs[0].gpus)
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


def _follow(job: str, logs: Path, on_step: Callable[[], None], say: Callable[[str], None]) -> JobState:
    """The job's last state, when it has one; calls `on_step` as rank 0 writes `step` lines."""
    counted, answered, pause, ask_at, last = 0, time.monotonic(), POLL_SECONDS, 0.0, ""
    while True:
        steps = _steps(logs)
        for _ in range(steps - counted):
            on_step()
        counted = max(counted, steps)
        if time.monotonic() >= ask_at or (logs / EXIT_CODE).exists():
            state = state_of(job)
            if state is not None:
                answered = time.monotonic()
                if state.is_over:
                    return state
                if str(state) != last and state.word != "COMPLETING":
                    say(f"Slurm job {job}: {state}")
                    last, pause = str(state), POLL_SECONDS
            elif time.monotonic() - answered > QUIET_SECONDS:
                raise RunError(f"Slurm's controller has not answered for {QUIET_SECONDS:g} s; job {job} was given up")
            ask_at, pause = time.monotonic() + pause, min(1.3 * pause, MOST_POLL_SECONDS)
        time.sleep(POLL_SECONDS)


def _steps(logs: Path) -> int:
    path = logs / RANK_LOG.format(rank=0)
    return path.read_text(encoding="utf-8", errors="replace").splitlines().count("step") if path.exists() else 0
