"""Without these a path or Slurm setting of a user's could run as shell code, or the ranks of a job meet at localhost.

Not covered: whether Slurm accepts the script; that takes a cluster.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import InputError
from repro.launch.sbatch import nodes_of, render
from repro.launch.slurm_settings import SlurmSettings, parse_settings

LOGS, CODE = Path("/shared/results/logs"), Path("/shared/code")


def script(command: tuple[str, ...] = ("python", "-m", "worker", "job.json"), *settings: str, ranks: int = 16) -> str:
    return render("repro-ladder", ranks, command, parse_settings(settings), LOGS, CODE, None)


def test_directives_and_the_ranks_command() -> None:
    found = script(("python", "-m", "worker", "job.json"), "partition=gpu", "time=2:00:00", "gpus_per_node=8",
                   "extra=--exclusive --mem=0")  # fmt: skip
    directives = [line for line in found.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        "#SBATCH --job-name=repro-ladder",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=16",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2:00:00",
        "#SBATCH --output=/dev/null",
        "#SBATCH --no-requeue",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
    ]
    assert found.splitlines()[-3:] == [
        "srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=1 --kill-on-bad-exit=1 --export=ALL \\",
        """    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; """
        """code=0; "$@" >"$0/rank-$RANK.log" 2>&1 || code=$?; echo $code >"$0/exit-rank$RANK.txt"; exit $code' \\""",
        '    "$logs" python -m worker job.json',
    ]
    assert "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))" in found
    assert "MASTER_ADDR=127" not in found
    assert "MASTER_ADDR=localhost" not in found


def test_is_valid_bash() -> None:
    assert subprocess.run(["bash", "-n"], input=script(), text=True, check=False).returncode == 0


@given(st.text(min_size=1, max_size=30))
def test_a_word_reaches_the_rank_as_it_is_or_is_refused(word: str) -> None:
    """The last line of the script, run by bash with `srun ... bash -c` taken away, gives the words back."""
    if not word.isprintable():
        with pytest.raises(InputError, match="line breaks or control characters"):
            script(("worker", word))
        return
    last = script(("worker", word)).splitlines()[-1].strip()
    echoed = subprocess.run(
        ["bash", "-c", f"logs=/l; printf '%s\\0' {last}"], capture_output=True, text=True, check=True, timeout=10
    )
    assert echoed.stdout.split("\0")[:-1] == ["/l", "worker", word]


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_folders_reach_the_shell_as_they_are_or_are_refused(logs: str, code: str) -> None:
    """The lines that name folders, run by bash, give the folders back."""
    arguments = ("x", 2, ["worker"], SlurmSettings(), Path(logs), Path(code), None)
    if not (logs + code).isprintable():
        with pytest.raises(InputError, match="line breaks or control characters"):
            render(*arguments)
        return
    lines = [line for line in render(*arguments).splitlines() if line.startswith(("logs=", "export PYTHONPATH="))]
    assert len(lines) == 2
    shell = "\n".join(["unset PYTHONPATH", *lines, """printf '%s\\0' "$logs" "$PYTHONPATH" """])
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True, timeout=10)
    assert found.stdout.split("\0")[:-1] == [str(Path(logs)), str(Path(code))]
    assert found.stderr == ""


@given(st.text(min_size=1, max_size=40))
def test_a_name_is_one_directive_of_plain_characters(name: str) -> None:
    text = render(name, 2, ["worker"], SlurmSettings(), LOGS, CODE, None)
    named = [line for line in text.splitlines() if "job-name" in line]
    assert len(named) == 1 and re.fullmatch(r"#SBATCH --job-name=[A-Za-z0-9_.+-]*", named[0])


HOSTILE = [
    "plain",
    "a b",
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "a\\",
    "-rf",
    "*",
    "é",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_the_whole_script_runs_with_a_hostile_folder(name: str, tmp_path: Path) -> None:
    """Slurm's commands are stand-ins; srun's starts rank 1 alone, which dies of its own SIGKILL."""
    logs, programs = tmp_path / name / "logs", tmp_path / "bin"
    logs.mkdir(parents=True)
    programs.mkdir()
    scontrol = """case $2 in hostnames) echo n1 ;; *) echo "NodeName=n1 NodeAddr=127.0.0.1 NodeHostName=h X=" ;; esac"""
    srun = 'while [ "$1" != bash ]; do shift; done; SLURM_PROCID=1 SLURM_LOCALID=0 "$@"'
    for program, body in (("scontrol", scontrol), ("srun", srun)):
        (programs / program).write_text(f"#!/bin/bash\n{body}\n")
        (programs / program).chmod(0o755)
    command = ["bash", "-c", 'echo "$RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $1"; kill -KILL $$', "bash", name]
    script = render("x", 2, command, SlurmSettings(), logs, tmp_path / name, None)
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_ID": "12005"}
    done = subprocess.run(["bash"], input=script, text=True, env=variables, cwd=tmp_path, timeout=20, check=False)
    assert done.returncode == 137
    assert (logs / "rank-1.log").read_text() == f"1 2 127.0.0.1:20005 {name}\n"
    assert (logs / "exit-rank1.txt").read_text() == "137\n"
    assert (logs / "slurm-exit-code.txt").read_text() == "137\n"
    assert not list(tmp_path.rglob("pwned"))


def test_ranks_fill_whole_nodes() -> None:
    assert nodes_of(4, SlurmSettings()) == (1, 4)
    assert nodes_of(256, SlurmSettings()) == (32, 8)
    with pytest.raises(InputError, match="does not divide the 12 ranks"):
        nodes_of(12, SlurmSettings())
