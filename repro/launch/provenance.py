"""What made a number: code, versions, commit; and from them whether a finished run still stands."""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from repro.config import Mode, RunConfig, fingerprint

PACKAGE = Path(__file__).resolve().parents[1]

_ON_RANKS = (
    "balance",
    "comm",
    "config.py",
    "data",
    "device",
    "embedding",
    "execution/assignment.py",
    "execution/base.py",
    "execution/measured.py",
    "execution/parts.py",
    "execution/under_way.py",
    "launch/network.py",
    "launch/relay.py",
    "model",
    "pipeline",
    "timeline",
)

ROOMS: dict[Mode, tuple[str, ...]] = {
    "measured": _ON_RANKS,
    "emulated": (
        *_ON_RANKS,
        "execution/emulated.py",
        "execution/simulated/clusters.py",
        "execution/simulated/compute.py",
    ),
    "simulated": (
        "balance/partition.py",
        "config.py",
        "data/columns.py",
        "data/dataset.py",
        "execution/base.py",
        "execution/simulated",
        "model/normalized_entropy.py",
        "pipeline/ops.py",
        "pipeline/step_plan.py",
        "timeline",
    ),
}
"""Rooms whose code decides the numbers of a mode."""

_RANKS_PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy")

DECIDING: dict[Mode, tuple[str, ...]] = {
    "measured": _RANKS_PACKAGES,
    "emulated": _RANKS_PACKAGES,
    "simulated": ("numpy",),
}
"""Packages whose version decides the numbers of a mode."""


def run_fingerprint(config: RunConfig, dataset_fingerprint: str, beside: Sequence[RunConfig]) -> str:
    """Equal fingerprints mean equal numbers (up to timing noise): a finished run with it needs no repeat.

    Args:
        beside: the runs it is executed together with, itself included.
    """
    return fingerprint(
        {
            "config": config.deciding(),
            "beside": [other.deciding() for other in beside],
            "dataset": dataset_fingerprint,
            "code": code_fingerprint(config.mode),
            "versions": versions(config.mode),
        }
    )


def code_fingerprint(mode: Mode) -> str:
    """SHA-256 over the syntax trees of the mode's rooms, so that comments and layout do not count."""
    digest = hashlib.sha256()
    for room in ROOMS[mode]:
        path = PACKAGE / room
        for source in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(source.relative_to(PACKAGE).as_posix().encode())
            digest.update(ast.dump(ast.parse(source.read_text(encoding="utf-8"))).encode())
    return digest.hexdigest()


def versions(mode: Mode) -> dict[str, str]:
    """Installed versions of the deciding packages; a package that is not installed is left out."""
    found = {}
    for package in DECIDING[mode]:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def git_state() -> tuple[str, bool]:
    """(commit, whether tracked files differ from it); (`unknown`, False) outside a checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return commit, bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return "unknown", False


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=PACKAGE, check=True, capture_output=True, text=True, timeout=30
    ).stdout.strip()
