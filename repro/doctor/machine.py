"""Checks of the machine: folders, CPU and memory, GPUs, Slurm. They look and change nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from repro.doctor.check import Check

GIB = 1024**3
FREE_DISK_GIB = 2
"""Results and prepared data of `make reproduce` take well under 1 GiB; W&B needs room to stage files beside them."""
MEMORY_GIB = 4
"""What `make reproduce` is kept under."""
CORES = 2
"""One for each rank of the smallest measured run."""
CUDA_DRIVER = 580
"""Oldest Linux driver series that runs CUDA 13, which the CUDA packages are built for
(https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html, table of driver versions)."""
ANSWER_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """What `nvidia-smi` says."""

    installed: bool
    """`nvidia-smi` is there."""
    names: tuple[str, ...] = ()
    memory_mib: tuple[int, ...] = ()
    driver: str = ""
    error: str = ""
    """Why it did not answer; empty when it did."""


def folder(name: str, option: str, path: Path) -> Check:
    """Whether files can be written in `path`, which is not made when missing, and whether there is room."""
    place = path.absolute()
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        # Has no name, or loses it at once: nothing stays behind, also when this process is killed.
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"\0")
    except OSError as error:
        return Check(
            name=name,
            state="fail",
            detail=f"{path}: cannot be written ({error.strerror})",
            fix=f"make {place} a folder you can write to, or name another with {option}",
        )
    free = shutil.disk_usage(place).free / GIB
    detail = f"{path}: {'writable' if place == path.absolute() else 'can be made'}, {free:.0f} GiB free"
    if free < FREE_DISK_GIB:
        return Check(
            name=name,
            state="warn",
            detail=f"{path}: only {free:.1f} GiB free",
            fix=f"free {FREE_DISK_GIB} GiB, or name a folder on another disk with {option}",
        )
    return Check(name=name, state="ok", detail=detail)


def cpu_and_memory() -> Check:
    """Cores this process may use, and memory that is available now."""
    cores = len(os.sched_getaffinity(0))
    available = _available_memory_gib()
    detail = f"{cores} cores, {available:.0f} GiB of memory available"
    if available < MEMORY_GIB:
        fix = f"close other programs: runs may need {MEMORY_GIB} GiB"
    elif cores < CORES:
        fix = f"use {CORES} cores: ranks that share one make measured times meaningless"
    else:
        return Check(name="CPU", state="ok", detail=detail)
    return Check(name="CPU", state="warn", detail=detail, fix=fix)


def _available_memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / GIB
    return 0.0


def find_gpus() -> Gpus:
    """The GPUs of this machine, asked of the driver: works whatever packages are installed."""
    if shutil.which("nvidia-smi") is None:
        return Gpus(installed=False)
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    answer, error = _ask(query)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.count(",") == 2]
    if error or not rows:
        return Gpus(installed=True, error=error or "it lists no GPU")
    # Memory reads [N/A] where a GPU shares the host's.
    memory = tuple(int(row[1]) if row[1].isdigit() else 0 for row in rows)
    return Gpus(installed=True, names=tuple(row[0] for row in rows), memory_mib=memory, driver=rows[0][2])


def gpus(found: Gpus, train: str) -> Check:
    """Whether GPUs, their driver and the installed packages fit together.

    Args:
        train: name of the installed version train; empty when there is none.
    """
    if not found.installed and train == "cuda":
        return Check(
            name="GPUs",
            state="warn",
            detail="none, though the CUDA packages are installed",
            fix="run on a machine with GPUs, or install the CPU packages: `make doctor ACCELERATOR=cpu`",
        )
    if not found.installed:
        return Check(name="GPUs", state="ok", detail="none: measured runs use the CPU")
    if found.error:
        return Check(
            name="GPUs",
            state="warn",
            detail=f"nvidia-smi does not work ({found.error})",
            fix="mend the NVIDIA driver, or stay on the CPU: `make reproduce ACCELERATOR=cpu`",
        )
    kinds = {
        f"{found.names.count(name)} x {name} ({memory / 1024:.0f} GiB)"
        for name, memory in zip(found.names, found.memory_mib, strict=True)
    }
    detail = f"{', '.join(sorted(kinds))}, driver {found.driver}"
    major = found.driver.split(".")[0]
    if train == "cpu":
        fix = "to use them, install the CUDA packages: `make reproduce ACCELERATOR=cuda`"
    elif major.isdigit() and int(major) < CUDA_DRIVER:
        fix = f"update the driver to {CUDA_DRIVER} or newer, or stay on the CPU: `make reproduce ACCELERATOR=cpu`"
    else:
        return Check(name="GPUs", state="ok", detail=detail)
    return Check(name="GPUs", state="warn", detail=detail, fix=fix)


def slurm() -> Check:
    """Whether jobs could be submitted from here."""
    there = [program for program in ("sinfo", "sbatch") if shutil.which(program)]
    if not there:
        return Check(name="Slurm", state="ok", detail="not here: runs start on this machine")
    if len(there) == 1:
        return Check(
            name="Slurm",
            state="warn",
            detail=f"{there[0]} is here, but {'sbatch' if there == ['sinfo'] else 'sinfo'} is not",
            fix="install Slurm's client programs, or log in to a node that has them",
        )
    answer, error = _ask(["sinfo", "--noheader", "--Node", "--format=%N %P"])
    nodes = {line.split()[0] for line in answer.splitlines() if line.strip()}
    if error or not nodes:
        return Check(
            name="Slurm",
            state="warn",
            detail=f"sinfo does not answer ({error or 'it lists no node'})",
            fix="ask the cluster's administrator whether slurmctld runs; `sinfo` should list nodes",
        )
    partitions = {line.split()[1].rstrip("*") for line in answer.splitlines() if len(line.split()) > 1}
    return Check(name="Slurm", state="ok", detail=f"{len(nodes)} nodes in {', '.join(sorted(partitions))}")


def _ask(command: list[str]) -> tuple[str, str]:
    """(what a program prints, why it failed); one of the two is empty."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"no answer in {ANSWER_SECONDS} s"
    except OSError as error:
        return "", str(error.strerror)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return "", lines[-1] if lines else f"exit code {done.returncode}"
    return done.stdout, ""
