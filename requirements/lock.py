"""Write `constraints-cpu.txt` and `constraints-cuda.txt`: every package of each version train, pinned exactly.

pip resolves each set from package metadata without installing anything. Pins that exist are kept, so a new requirement
moves no other package; `--upgrade` resolves afresh. Run through `make lock`, with Python 3.11 on Linux x86_64. For the
CPU set pip must see PyTorch's CPU wheels, else the pins of a CUDA build would be written.

    python requirements/lock.py [--upgrade]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
HEADER = """\
# Every package of the {train} set, pinned. Made by `make lock` from {train}.in, common.in and no-deps.in; do not edit.
# Python 3.11, Linux x86_64.
"""


def main(upgrade: bool) -> None:
    """Write both files, or none when a set does not resolve."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        _pip(python, "--upgrade", "pip")  # the one that comes with Python may be too old to read metadata only
        locked = {train: _lock(python, train, upgrade) for train in ("cpu", "cuda")}
    for train, pins in locked.items():
        lines = (f"{name}=={version}\n" for name, version in sorted(pins.items()))
        (FOLDER / f"constraints-{train}.txt").write_text(HEADER.format(train=train) + "".join(lines), encoding="utf-8")
        print(f"constraints-{train}.txt: {len(pins)} packages")


def _lock(python: Path, train: str, upgrade: bool) -> dict[str, str]:
    constraints = FOLDER / f"constraints-{train}.txt"
    keep = ["-c", str(constraints)] if constraints.exists() and not upgrade else []
    pins = {
        **_resolve(python, "-r", str(FOLDER / f"{train}.in"), *keep),
        **_resolve(python, "--no-deps", "-r", str(FOLDER / "no-deps.in"), *keep),
    }
    cuda = [name for name in pins if name.startswith("nvidia-")]
    if train == "cpu" and cuda:
        raise SystemExit("lock: pip found torch's CUDA build for the CPU set; point pip at PyTorch's CPU wheels")
    return pins


def _resolve(python: Path, *arguments: str) -> dict[str, str]:
    """Name -> version of everything pip would install."""
    with tempfile.NamedTemporaryFile() as report:
        # fast-deps reads the metadata of remote wheels by range requests instead of downloading gigabytes.
        _pip(python, "--use-feature=fast-deps", "--dry-run", "--ignore-installed", "--report", report.name, *arguments)
        installed = json.loads(Path(report.name).read_text(encoding="utf-8"))["install"]
    # The build label says where torch came from, not what it is; the stub's label is part of its version.
    return {
        name: item["metadata"]["version"].removesuffix("+cpu") if name == "torch" else item["metadata"]["version"]
        for item in installed
        for name in [re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()]
    }


def _pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([python, "-m", "pip", "install", "-qq", *arguments], cwd=FOLDER.parent)
    if done.returncode:
        raise SystemExit("lock: pip failed (above); if pins conflict, `make lock UPGRADE=1` drops the old ones")


if __name__ == "__main__":
    main(upgrade="--upgrade" in sys.argv[1:])
