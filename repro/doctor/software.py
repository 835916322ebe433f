"""Checks of what is installed: Python, the version train, W&B, Jupyter. None of them imports torch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from repro.doctor.check import Check

PYTHON = (3, 11)

TRAINS: dict[str, dict[str, str]] = {
    "cpu": {"torch": "2.13.0", "torchrec": "1.8.0", "fbgemm-gpu": "1.8.0+cpu", "fbgemm-gpu-cpu": "1.8.0"},
    "cuda": {"torch": "2.14.1", "torchrec": "1.9.2", "fbgemm-gpu": "1.9.0"},
}
"""The sets this project is tested with, as `requirements/` pins them. FBGEMM's operators are compiled against one torch
release: with another, importing them fails or, worse, does not."""

REINSTALL = "install one set again: `rm -rf .venv`, then `make doctor`"


def python() -> Check:
    """The interpreter's version."""
    found = sys.version.split()[0]
    if sys.version_info < PYTHON:
        needed = ".".join(map(str, PYTHON))
        return Check(
            name="Python", state="fail", detail=f"{found} is too old", fix=f"use {needed} or newer: make PYTHON=..."
        )
    return Check(name="Python", state="ok", detail=f"{found} ({sys.prefix})")


def installed_versions() -> dict[str, str]:
    """Version of each package of either train; packages that are not installed are left out."""
    found = {}
    for package in dict.fromkeys(package for train in TRAINS.values() for package in train):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def train_name(installed: Mapping[str, str]) -> str:
    """The train that these versions are, or an empty string."""
    # torch's build label (+cpu, +cu130) names the wheel, not the release.
    plain = {package: found.split("+")[0] if package == "torch" else found for package, found in installed.items()}
    return next((name for name, train in TRAINS.items() if plain == train), "")


def version_train(installed: Mapping[str, str]) -> Check:
    """Whether torch, TorchRec and FBGEMM belong together."""
    detail = ", ".join(f"{package} {found}" for package, found in installed.items()) or "torch is not installed"
    name = train_name(installed)
    if name:
        return Check(name="Version train", state="ok", detail=f"{name}: {detail}")
    return Check(name="Version train", state="fail", detail=f"not one tested set: {detail}", fix=REINSTALL)


def wandb() -> Check:
    """Which W&B is installed and where runs would go. Says whether there are credentials, never what they are."""
    try:
        found = version("wandb")
        from repro.tracking.wandb_sink import logged_in

        online = logged_in()
    except PackageNotFoundError:
        return Check(name="W&B", state="warn", detail="not installed: runs are kept as JSONL only", fix=REINSTALL)
    except Exception as error:  # whatever W&B raises must not end the other checks, and its text may hold a key
        return Check(
            name="W&B",
            state="warn",
            detail=f"{type(error).__name__} while looking for credentials",
            fix="see `wandb login --verify`; or go without: --wandb offline",
        )
    state = "logged in: runs go online" if online else "not logged in: runs stay offline under results/wandb"
    return Check(name="W&B", state="ok", detail=f"{found}, {state}")


def jupyter() -> Check:
    """Whether notebooks can be opened and executed: JupyterLab, and a kernel in this interpreter."""
    needed = ("jupyterlab", "nbclient", "nbconvert", "ipykernel", "jupyter_client")
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        return Check(
            name="Jupyter", state="warn", detail=f"{', '.join(missing)} not installed: no notebooks", fix=REINSTALL
        )
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager

    kernels = KernelSpecManager().find_kernel_specs()
    if NATIVE_KERNEL_NAME not in kernels:
        return Check(
            name="Jupyter", state="warn", detail=f"no kernel named {NATIVE_KERNEL_NAME}: `make lab` has none to start",
            fix=f"{sys.executable} -m ipykernel install --sys-prefix",
        )  # fmt: skip
    return Check(name="Jupyter", state="ok", detail=f"lab {version('jupyterlab')}, kernel {NATIVE_KERNEL_NAME}")
