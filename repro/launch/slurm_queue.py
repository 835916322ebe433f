"""Slurm's commands: submit a script, ask for a job's state, cancel it.

Asks scontrol, not sacct, so that clusters without accounting serve.

A job gets the submitting shell's environment reduced to a list of names, since Slurm stores what a job inherits in its
controller's state and hands it to every node. What is left out cannot leak: keys (`WANDB_API_KEY`), tokens, proxies
with passwords, and `SLURM_JWT`, so that clusters which take tokens instead of munge are not served. It is reduced
before sbatch starts: sbatch's own `--export=NAMES` would run the user's login scripts on the node instead, which may
set the same secrets. `SBATCH_*` is left out, too, as it would win over the script.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repro.errors import InputError, RunError
from repro.launch.slurm_settings import SlurmSettings, blamed

LEAVE_SECONDS = 30.0
"""How long a cancelled job may take to leave the queue."""
POLL_SECONDS = 1.0
COMMAND_SECONDS = 30
_DID_NOT_ANSWER = 124
_UNANSWERED = re.compile(r"[Uu]nable to contact slurm controller|timed out|connect failure")

PASSED_ON = (
    *("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CUDA_HOME", "SLURM_CONF"),
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME"),
)
"""Names of variables that a job inherits."""
PASSED_ON_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "TRITON_", "UCX_", "FI_")
"""And those that start so: how collectives find the network, where Triton keeps its cache."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)

DIED = {"CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
OVER = DIED | {"COMPLETED", "FAILED"}
GONE = "GONE"
"""Slurm has forgotten the job."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job."""

    word: str
    """E.g. `PENDING`; `GONE` when Slurm knows the job no more."""
    reason: str = ""
    """Why it waits, in Slurm's word (as squeue shows it); empty when there is none."""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """None of its processes can write any more."""
        return self.word == GONE or self.word in OVER

    def __str__(self) -> str:
        if self.word == "RUNNING":
            return f"running on {self.nodes}"
        word = "queued" if self.word == "PENDING" else self.word.lower()
        return f"{word} ({self.reason})" if self.reason else word


def inherited(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of `variables` that a job gets."""
    return {
        name: value
        for name, value in variables.items()
        if name in PASSED_ON or (name.startswith(PASSED_ON_PREFIXES) and not _SECRET.search(name))
    }


def check_sbatch() -> None:
    """See that jobs can be submitted from here.

    Raises:
        InputError: they cannot.
    """
    if shutil.which("sbatch") is None:
        raise InputError("--executor slurm: there is no sbatch here; use a login node of a Slurm cluster")


def submit(script: Path, settings: SlurmSettings) -> str:
    """Id of the job made of `script`.

    Raises:
        InputError: there is no sbatch, or it refused the job; names the setting. Or a job of the same script still
            works, left by a command that was killed: both would write the same files.
        RunError: it did not answer.
    """
    check_sbatch()
    for job in _jobs_of(script):
        raise InputError(f"{script}: Slurm job {job} of an earlier command still works here; `scancel {job}` ends it")
    done = _slurm("sbatch", "--parsable", "--export=ALL", str(script), variables=inherited(os.environ))
    if done.returncode == _DID_NOT_ANSWER or _UNANSWERED.search(done.stderr):
        for job in _jobs_of(script):  # the answer was lost, the job was not
            return job
        said = done.stderr.strip().splitlines()[-1]
        raise RunError(f"{said}; whether the job is queued, squeue will tell (script: {script})")
    job = done.stdout.strip().split(";")[0]
    if done.returncode or not re.fullmatch(r"[0-9]+", job):
        raise InputError(_refusal(done.stderr or done.stdout, settings, script))
    return job


def _jobs_of(script: Path) -> list[str]:
    """Ids of this user's jobs in the queue that were made of `script`."""
    listed = _slurm("squeue", "--me", "--noheader", "--format=%i %o").stdout.splitlines()
    return [job for job, _, command in (line.partition(" ") for line in listed) if command == str(script)]


def _refusal(said: str, settings: SlurmSettings, script: Path) -> str:
    lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines()]
    told = [line for line in lines if line and not line.startswith("Try ")]
    last = next((line for line in told if "submission failed" in line), (told or ["no reason given"])[-1])
    reason = last.removeprefix("Batch job submission failed: ")
    return f"{blamed(reason, settings)}: sbatch refused the job: {reason} (script: {script})"


def state_of(job: str) -> JobState | None:
    """The job's state; None when Slurm does not answer."""
    done = _slurm("scontrol", "show", "job", "--oneliner", job)
    if done.returncode:
        return JobState(GONE) if "Invalid job id" in done.stderr else None
    fields = dict(re.findall(r"\b(JobState|Reason|NodeList)=(\S+)", done.stdout))
    if "JobState" not in fields:
        return None
    reason = fields.get("Reason", "None")
    return JobState(fields["JobState"], "" if reason == "None" else reason, fields.get("NodeList", ""))


def cancel(job: str) -> None:
    """Cancel the job, and wait until none of its processes can write any more. Says so when that cannot be told."""
    give_up = time.monotonic() + LEAVE_SECONDS
    while True:
        asked = _slurm("scancel", job)
        state = state_of(job)
        if state is not None and state.is_over:
            return
        if time.monotonic() > give_up:
            break
        time.sleep(POLL_SECONDS)
    last = str(state) if state is not None else "not known: Slurm's controller does not answer"
    said = f"; {asked.stderr.strip().splitlines()[-1]}" if asked.returncode and asked.stderr.strip() else ""
    print(
        f"repro: Slurm job {job} did not end in {LEAVE_SECONDS:g} s, its state is {last}{said}; see `scancel {job}`",
        file=sys.stderr,
    )


def _slurm(*command: str, variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run`, out of reach of the terminal's Ctrl-C; not ending in time has an exit code of its own."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"{command[0]} did not answer in {COMMAND_SECONDS} s"
        return subprocess.CompletedProcess(command, _DID_NOT_ANSWER, "", said)
