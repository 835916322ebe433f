"""Is this machine fit for runs, and if not, what is to be done? Behind `repro doctor`.

A wrong set of packages or a network that ranks cannot talk over shows itself late in a run, as a crash or a hang. The
checks here find out in seconds, by trying the real thing: an FBGEMM operator, a process group of two ranks, a file
written. The folders stay as they were, and no process outlives its check.

    found = checks(Path("results"), Path("data/prepared"))
    print_checks(found)
    broken = any(check.state == "fail" for check in found)
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from repro.config import Transport
from repro.doctor import machine, software
from repro.doctor.check import Check

__all__ = ["Check", "checks", "group", "operators", "print_checks", "transports"]

# -P: the folder of the script would come first on its path otherwise, and its modules could hide others.
PROBE: tuple[str, ...] = (sys.executable, "-P", str(Path(__file__).with_name("probes.py")))
PROBE_SECONDS = 60
"""Importing torch takes 2 s from a local disk and half a minute from a busy network file system."""
WORLD = 2


def checks(results: Path, data: Path) -> list[Check]:
    """Everything, in the order in which things are to be mended. About 10 s.

    Args:
        results: folder of results; need not exist.
        data: folder of prepared data sets; need not exist.
    """
    versions = software.installed_versions()
    gpus = machine.find_gpus()
    found = [software.python(), software.version_train(versions), operators(), group("gloo")]
    if len(gpus.names) >= WORLD and software.train_name(versions) == "cuda":
        found.append(group("nccl"))
    return [
        *found,
        machine.folder("Results folder", "--results", results),
        machine.folder("Data folder", "--data", data),
        machine.cpu_and_memory(),
        machine.gpus(gpus, software.train_name(versions)),
        *transports(),
        machine.slurm(),
        software.wandb(),
        software.jupyter(),
    ]


def print_checks(found: Sequence[Check]) -> None:
    """One line a check, a second one with the fix where there is one, and the sum at the end."""
    width = max(len(check.name) for check in found)
    for check in found:
        print(f"{check.state:<4}  {check.name:<{width}}  {check.detail}")
        if check.fix:
            print(f"{'':<4}  {'':<{width}}  -> {check.fix}")
    failed, warned = (sum(check.state == state for check in found) for state in ("fail", "warn"))
    print(f"{len(found)} checks: {failed} failed, {warned} with a warning" if failed or warned else "all well")


def operators() -> Check:
    """Whether FBGEMM and TorchRec load and compute."""
    answer, reason = _probe([("operators",)])
    if reason:
        return Check(name="Operators", state="fail", detail=reason, fix=software.REINSTALL)
    return Check(name="Operators", state="ok", detail=answer)


def transports() -> list[Check]:
    """Which transports can be used here, a check each. Those that no recipe can name may be missing without harm."""
    answer, reason = _probe([("transports",)])
    if reason:
        return [Check(name="Transports", state="fail", detail=reason, fix=software.REINSTALL)]
    return [_transport(name, missing) for name, missing in json.loads(answer).items()]


def _transport(name: str, missing: str) -> Check:
    title = f"Transport {name}"
    if not missing:
        return Check(name=title, state="ok", detail="can be used")
    if name in get_args(Transport):
        fix = f"{software.REINSTALL}; until then run no arm that names {name}"
        return Check(name=title, state="warn", detail=missing, fix=fix)
    return Check(name=title, state="ok", detail=f"not here: {missing}")


def group(backend: str) -> Check:
    """Whether two ranks on this machine find each other and exchange rows.

    Args:
        backend: gloo or nccl.
    """
    name = f"Ranks ({backend})"
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = str(Path(folder) / "rendezvous")
        started = time.monotonic()
        _, reason = _probe([("rank", str(rank), str(WORLD), backend, rendezvous) for rank in range(WORLD)])
    if reason:
        fix = (
            "let processes connect over the loopback interface (`ip link show lo`, firewall rules)"
            if backend == "gloo"
            else "see what NCCL says: NCCL_DEBUG=INFO repro doctor; containers need --shm-size=1g or --ipc=host"
        )
        return Check(name=name, state="fail", detail=f"{WORLD} ranks do not work together: {reason}", fix=fix)
    seconds = time.monotonic() - started
    return Check(
        name=name, state="ok", detail=f"{WORLD} ranks exchanged uneven shares ({seconds:.0f} s with their start)"
    )


def _probe(arguments: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Run one probe for each list of arguments, together; (first answer, why it failed), one of them empty."""
    deadline = time.monotonic() + PROBE_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(len(arguments))]
        probes = []
        for output, words in zip(outputs, arguments, strict=True):
            with output.open("w") as answer, output.with_suffix(".err").open("w") as errors:
                probes.append(
                    subprocess.Popen(
                        [*PROBE, *words], stdin=subprocess.DEVNULL, stdout=answer, stderr=errors, env=_environment()
                    )
                )
        try:
            # The first to fail ends the others: they would wait for it until the time is up.
            while (codes := [probe.poll() for probe in probes]).count(None) and not any(codes):
                if time.monotonic() > deadline:
                    return "", f"no answer in {PROBE_SECONDS} s"
                time.sleep(0.05)
        finally:
            for probe in probes:
                probe.kill()
                probe.wait()
        for output, code in zip(outputs, codes, strict=True):
            if code:
                return "", _reason(code, output.with_suffix(".err"))
        lines = outputs[0].read_text().splitlines()
        return lines[-1] if lines else "works", ""


def _environment() -> dict[str, str]:
    """As the launcher's: ranks talk over loopback, whatever this machine's host name resolves to."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}


def _reason(code: int, errors: Path) -> str:
    """The last line a probe wrote, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {code}"
