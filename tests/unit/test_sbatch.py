"""Without these a path or Slurm setting of a user's could run as shell code, or the ranks of a job meet at localhost.

Not covered: whether Slurm accepts the script; that takes a cluster.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import InputError
from repro.launch.sbatch import SlurmSettings, nodes_of, parse_settings, render

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
        "srun --nodes=2 --ntasks=16 --ntasks-per-node=8 --cpus-per-task=1 --kill-on-bad-exit=1 \\",
        """    bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec "$@" >"$0/rank-$RANK.log" 2>&1' \\""",
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


@given(st.text(max_size=20))
def test_a_setting_adds_one_directive_or_is_refused(value: str) -> None:
    plain = script().splitlines()
    try:
        found = script(("python", "-m", "worker", "job.json"), f"partition={value}").splitlines()
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert [line for line in found if line not in plain] == [f"#SBATCH --partition={value}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=red", "KEY one of partition, account"),
        ("partition", "must be KEY=VALUE"),
        ("partition=a;b", "cannot carry safely"),
        ("partition=$(id)", "cannot carry safely"),
        ("ranks_per_node=0", "whole number"),
        ("extra=--wrap=id", "set from the recipe"),
        ("extra=exclusive", "must be --name"),
    ],
)
def test_bad_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_settings([text])


def test_ranks_fill_whole_nodes() -> None:
    assert nodes_of(4, SlurmSettings()) == (1, 4)
    assert nodes_of(256, SlurmSettings()) == (32, 8)
    with pytest.raises(InputError, match="does not divide the 12 ranks"):
        nodes_of(12, SlurmSettings())
