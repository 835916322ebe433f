"""Why a Slurm job ended: Slurm's word, the script's exit code, how each rank ended and what it wrote, in one line.

When one rank fails, others fail for its sake: they lose a peer, or Slurm ends them. So the first exit code decides
whether a rank was killed, and else the first reason that a rank wrote.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from repro.errors import InputError, RunError
from repro.launch.local import reason_of_ranks
from repro.launch.sbatch import EXIT_CODE, JOB_LOG, RANK_EXIT_CODE, RANK_LOG, REFUSED
from repro.launch.slurm_queue import DIED, JobState

POLL_SECONDS = 1.0
FILE_SECONDS = 30.0
"""How long a file may take to come through a shared file system."""


def check(job: str, state: JobState, logs: Path, ranks: int) -> None:
    """Raise what there is to say of a job that did not end well.

    Args:
        state: its last.
        logs: where its script and its ranks wrote.

    Raises:
        InputError: a rank refused its input.
        RunError: anything else; names the rank where one is to blame.
    """
    if state.word == "TIMEOUT":
        raise RunError(f"Slurm job {job} ran into its time limit; ask for more with --slurm time=... (log: {logs})")
    if state.word in DIED:
        raise RunError(
            f"Slurm job {job} ended as {state.word}; the same command goes on from its newest checkpoint, or starts "
            f"anew (log: {logs})"
        )
    code = _exit_code(logs)
    if code == 0:
        return
    refused = logs / REFUSED
    if refused.exists():
        raise RunError(f"Slurm job {job}: {refused.read_text(encoding='utf-8').strip()} (log: {logs / JOB_LOG})")
    first = _first_to_fail(logs, ranks)
    if first is not None and first[1] - 128 in set(signal.Signals):
        name, log = signal.Signals(first[1] - 128).name, logs / RANK_LOG.format(rank=first[0])
        raise RunError(f"Slurm job {job}: rank {first[0]}: killed by {name} (log: {log})")
    found = reason_of_ranks(ranks, logs)
    if found is not None:
        text = f"Slurm job {job}: rank {found.rank}: {found.text} (log: {logs / RANK_LOG.format(rank=found.rank)})"
        raise InputError(text) if found.refused else RunError(text)
    if code is None:
        raise RunError(
            f"Slurm job {job} left no exit code in {logs}: do all nodes share the folder, and has it space left? "
            "--results chooses another"
        )
    if first is not None:
        raise RunError(f"Slurm job {job}: rank {first[0]} died without a word, exit code {first[1]}; see {logs}")
    said = (
        (logs / JOB_LOG).read_text(encoding="utf-8", errors="replace").split("\n") if (logs / JOB_LOG).exists() else []
    )
    last = next((line.strip() for line in reversed(said) if line.strip()), "nothing said")
    raise RunError(f"Slurm job {job}: exit code {code}, and no rank ended: {last} (log: {logs / JOB_LOG})")


def _first_to_fail(logs: Path, ranks: int) -> tuple[int, int] | None:
    """(rank, exit code) of the one that ended badly before the others did, which lost it as a peer or which Slurm ended
    for its sake."""
    codes = {}
    for rank in range(ranks):
        path = logs / RANK_EXIT_CODE.format(rank=rank)
        text = path.read_text(encoding="utf-8").strip() if path.exists() else ""
        if text.isdecimal() and text != "0":
            codes[path.stat().st_mtime_ns] = (rank, int(text))
    return codes[min(codes)] if codes else None


def _exit_code(logs: Path) -> int | None:
    """Of the script; waits a little, since a file that another node wrote may come late."""
    give_up = time.monotonic() + FILE_SECONDS
    while not (logs / EXIT_CODE).exists():
        if time.monotonic() > give_up:
            return None
        time.sleep(POLL_SECONDS)
    return int((logs / EXIT_CODE).read_text(encoding="utf-8"))
