"""Without this, a user's mistake ends in a traceback, a hang, or half a result instead of one line that says why.

Runs the real command in a process of its own. Not covered: what the commands compute.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--set", "dataset=tiny", "--set", "steps=3", "--set", "warmup_steps=0", "--set", "batch=4"]


def repro(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "repro.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *says: str, code: int = 2) -> None:
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for text in says:
        assert text in lines[0]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    done = repro("prepare", "tiny", "--data", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_help_lists_every_command() -> None:
    done = repro("--help")
    assert done.returncode == 0
    for command in ("doctor", "calibrate", "list", "prepare", "run", "reproduce", "report"):
        assert command in done.stdout


def test_list_names_experiments_and_data_sets() -> None:
    done = repro("list")
    assert done.returncode == 0
    for name in ("ladder", "fig08a", "movielens-100k", "industrial-21k", "repro run ladder"):
        assert name in done.stdout


def test_dry_run_prints_a_recipe_that_can_be_run(tmp_path: Path, data: Path) -> None:
    recipe = tmp_path / "mine.json"
    printed = repro("run", "ladder", "--mode", "simulated", "--dry-run", *TINY, "--set", "gpus=2")
    assert printed.returncode == 0, printed.stderr
    runs = json.loads(printed.stdout)[:2]
    recipe.write_text(json.dumps(runs))
    results = tmp_path / "results"
    folders = ["--results", str(results), "--data", str(data), "--wandb", "disabled"]
    assert repro("run", str(recipe), *folders).returncode == 0
    records = list(results.glob("runs/ladder/*/record.json"))
    assert len(records) == 2
    again = repro("run", str(recipe), *folders)
    assert again.stdout.count("done already, skipped") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "laddr"), "no experiment 'laddr'"),
        (("run", "missing.json"), "missing.json: cannot be read"),
        (("run", "ladder", "--set", "batch=0"), "batch: must be >= 1"),
        (("run", "ladder", "--set", "batch"), "path=value"),
        (("run", "ladder", "--mode", "imagined"), "invalid choice"),
        (("prepare", "movielens-3"), "no data set 'movielens-3'"),
        (("frobnicate",), "invalid choice"),
        ((), "required"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], says: str) -> None:
    assert_one_line(repro(*arguments), says)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("{}", "must be a list"), ('[{"experiment": "x"}]', "is missing"), ("[3]", "must be a table")],
)
def test_a_broken_recipe_file(tmp_path: Path, text: str, says: str) -> None:
    recipe = tmp_path / "broken.json"
    recipe.write_text(text)
    assert_one_line(repro("run", str(recipe)), str(recipe), says)


def test_a_data_set_that_is_not_prepared(tmp_path: Path) -> None:
    done = repro("run", "ladder", "--data", str(tmp_path), "--results", str(tmp_path / "results"))
    assert_one_line(done, "no prepared data set here", "repro prepare")
    assert not list(tmp_path.glob("results/runs/*/*"))


def test_more_steps_than_the_data_set_has(tmp_path: Path, data: Path) -> None:
    done = repro("run", "ladder", *TINY, "--set", "steps=100000", "--data", str(data), "--results", str(tmp_path))
    assert_one_line(done, "steps: 100000", "--set steps=")


def test_an_occupied_port(tmp_path: Path, data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = repro("run", "ladder", "--mode", "measured", *TINY, "--port", port, "--data", str(data),
                     "--results", str(tmp_path), "--wandb", "disabled")  # fmt: skip
        errors = [line for line in done.stderr.splitlines() if line.startswith("repro:")]
        assert done.returncode == 2 and len(errors) == 1 and f"--port {port}" in errors[0], done.stderr


def test_a_results_folder_that_is_a_file(tmp_path: Path, data: Path) -> None:
    (tmp_path / "results").write_text("")
    done = repro("run", "ladder", *TINY, "--data", str(data), "--results", str(tmp_path / "results"))
    assert_one_line(done, "cannot write results here", "--results")


def test_a_read_only_results_folder(tmp_path: Path, data: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    arguments = ("run", "ladder", *TINY, "--data", str(data), "--results", str(results))
    if os.geteuid() != 0:
        results.chmod(0o555)
        done = repro(*arguments)
    elif shutil.which("unshare"):  # root may write anywhere but on a read-only file system
        mount = f'mount -t tmpfs -o ro none "{results}" && exec "$@"'
        done = repro(*arguments, prefix=("unshare", "--mount", "sh", "-c", mount, "sh"))
        if "mount" in done.stderr:
            pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    else:
        pytest.skip("root without unshare has no read-only folder")
    assert_one_line(done, str(results), "cannot write results here")
