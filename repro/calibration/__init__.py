"""How fast is this machine? Behind `repro calibrate`: a profile of measured rates and of collectives between ranks.

A cost model is only as good as its rates. This measures those of the machine at hand: copies, launches, GEMM,
attention, elementwise work and embedding lookups of the CPU and of a GPU where torch sees one, and alpha and beta of
each collective over each transport between two local ranks. What could not be measured is listed with the reason,
never filled in.

    profile = calibrate(Path("results/calibration.json"))
    print(table(profile))

The machine should be idle; quartiles show whether it was. The CPU part has been run; the GPU part has not.
"""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from repro.calibration import setting as settings
from repro.calibration.collectives import collective_times, fits
from repro.calibration.missing import missing
from repro.calibration.profile import Profile, Rate, read_profile, write_profile
from repro.calibration.rates import rates
from repro.calibration.setting import Setting
from repro.calibration.table import table
from repro.errors import InputError
from repro.launch.provenance import git_state, versions

__all__ = ["Profile", "Setting", "calibrate", "read_profile", "table"]


def calibrate(output: Path, *, cpu: Setting = settings.CPU, cuda: Setting = settings.CUDA) -> Profile:
    """Measure this machine and write the profile, which `read_profile` reads.

    Args:
        output: a JSON file; its folder is made when missing, and an older profile is replaced at the end.
        cpu: sizes and repeats of the CPU's rates and of the collectives.
        cuda: of the GPU's rates, where torch sees a GPU.

    Raises:
        InputError: `output` cannot be written; said before anything is measured.
        RunError: a rank of the collectives failed.
    """
    _check_writable(output)
    commit, dirty = git_state()
    started, began = datetime.now(UTC), time.perf_counter()
    found: list[Rate] = list(rates(torch.device("cpu"), cpu))
    if torch.cuda.is_available():
        found += rates(torch.device("cuda"), cuda)
    times = collective_times(cpu)
    profile = Profile(
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - began,
        command=f"repro calibrate --output {output}",
        commit=commit,
        dirty=dirty,
        versions={"python": platform.python_version(), **versions("measured")},
        hardware=_hardware(),
        rates=tuple(found),
        collectives=times,
        fits=fits(times),
        missing=missing(),
    )
    write_profile(profile, output)
    return profile


def _check_writable(output: Path) -> None:
    advice = "name a file that can be written with --output"
    if output.is_dir():
        raise InputError(f"{output}: is a folder; {advice}")
    probe = output.with_name(f".{output.name}.{os.getpid()}.writable")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{output}: cannot be written ({error.strerror or error}); {advice}") from None


def _hardware() -> dict[str, str]:
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": f"{platform.system()} {platform.release()}",
    }
