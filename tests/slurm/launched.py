"""`repro run` as a user types it, in a process of its own, watched and interrupted from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 90
"""More than anything here takes, also on a busy machine with cold files."""


class Launched:
    """A running command line, and what it leaves behind."""

    def __init__(self, *arguments: str, results: Path, data: Path, environment: Mapping[str, str]) -> None:
        self.results = results
        folders = ["--results", str(results), "--data", str(data)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "repro.cli", *arguments, *folders, "--wandb", "disabled"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a shell's background jobs
        )

    def wait_until(self, ready: Callable[[], object]) -> None:
        """Fails when the command ends first."""
        give_up = time.monotonic() + WAIT_SECONDS
        while not ready():
            assert self._process.poll() is None, self._process.communicate()
            assert time.monotonic() < give_up, "the moment did not come"
            time.sleep(0.1)

    def is_training(self) -> bool:
        """Rank 0 has done a step."""
        logs = self.results.glob("runs/*/.*.partial/logs/rank-0.log")
        return any("step" in log.read_text(encoding="utf-8").split() for log in logs)

    def ctrl_c(self) -> None:
        """As a terminal does it: to the whole process group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ended(self) -> subprocess.CompletedProcess[str]:
        out, error = self._process.communicate(timeout=2 * WAIT_SECONDS)
        return subprocess.CompletedProcess(self._process.args, self._process.returncode, out, error)

    def ranks(self) -> dict[int, int]:
        """Rank -> process id of those that run."""
        found = {}
        for process, words in _processes():
            if words[1:3] == ["-m", "repro.execution.measured"] and str(self.results) in words[-1]:
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                found[int(next(v for v in variables if v.startswith(b"RANK="))[5:])] = process
        return found

    def left_behind(self) -> list[list[str]]:
        """Processes that still work for this command."""
        return [words for _, words in _processes() if any(str(self.results) in word for word in words)]

    def records(self) -> list[dict[str, object]]:
        """Records of complete runs; nothing may be half-written."""
        folders = [f for f in self.results.glob("runs/*/*") if not f.name.startswith(".")]
        assert sorted(self.results.rglob("record.json")) == sorted(folder / "record.json" for folder in folders)
        return [json.loads((folder / "record.json").read_text(encoding="utf-8")) for folder in folders]


def assert_says(done: subprocess.CompletedProcess[str], *says: str, code: int) -> None:
    """One line of error that has these texts in it."""
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code and len(lines) == 1, (done.returncode, done.stdout, done.stderr)
    assert all(text in lines[0] for text in says), lines[0]
    assert "Traceback" not in done.stdout


def _processes() -> list[tuple[int, list[str]]]:
    """(process id, command line) of all on this host but this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            continue  # it has ended meanwhile
        if words and int(folder.name) != os.getpid():
            found.append((int(folder.name), words))
    return found
