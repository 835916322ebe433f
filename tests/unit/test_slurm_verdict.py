"""Without these the rank that lost its peer is blamed for the one that was killed, or a user's mistake has the exit
code of a crash.

The files are made by hand, in the order in which ranks and shells write them; tests/slurm has real ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repro.errors import InputError, RunError
from repro.launch import slurm_verdict
from repro.launch.slurm_queue import JobState
from repro.launch.slurm_verdict import check

FAILED = JobState("FAILED")


def write(logs: Path, **files: str) -> None:
    """Files in the order given, a second apart; `_` stands for `-` in a name."""
    for second, (name, text) in enumerate(files.items()):
        path = logs / f"{name.replace('_', '-')}.txt"
        path.write_text(text)
        os.utime(path, (1_000_000 + second,) * 2)


def verdict(logs: Path, state: JobState = FAILED) -> Exception:
    with pytest.raises((InputError, RunError)) as raised:
        check("7", state, logs, ranks=3)
    assert "\n" not in str(raised.value) and "job 7" in str(raised.value)
    return raised.value


def test_the_killed_rank_comes_before_those_that_lost_it(tmp_path: Path) -> None:
    write(tmp_path, error_rank0="connection closed", exit_rank2="137", error_rank1="connection closed",
          exit_rank0="1", exit_rank1="1", slurm_exit_code="1")  # fmt: skip
    assert "rank 2: killed by SIGKILL" in str(verdict(tmp_path))


def test_a_rank_that_slurm_ended_is_not_the_one_to_blame(tmp_path: Path) -> None:
    write(tmp_path, error_rank1="loss is not finite", exit_rank1="1", exit_rank0="137", slurm_exit_code="1")
    found = verdict(tmp_path)
    assert isinstance(found, RunError) and "rank 1: loss is not finite" in str(found)


def test_a_refusal_is_bad_input(tmp_path: Path) -> None:
    write(tmp_path, refused_rank1="data: no prepared data set here", exit_rank1="2", error_rank0="connection closed",
          exit_rank0="1", slurm_exit_code="1")  # fmt: skip
    found = verdict(tmp_path)
    assert isinstance(found, InputError) and "rank 1: data: no prepared data set here" in str(found)


def test_a_rank_that_said_nothing_is_named(tmp_path: Path) -> None:
    write(tmp_path, exit_rank0="0", exit_rank1="255", slurm_exit_code="255")
    assert "rank 1 died without a word, exit code 255" in str(verdict(tmp_path))


def test_a_job_in_which_no_rank_ended_says_what_srun_said(tmp_path: Path) -> None:
    write(tmp_path, slurm_exit_code="1")
    (tmp_path / "slurm.log").write_text("srun: error: task 1 launch failed\nsrun: error: Timed out waiting\n\n")
    assert "no rank ended: srun: error: Timed out waiting" in str(verdict(tmp_path))


def test_a_job_that_left_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_verdict, "FILE_SECONDS", 0.0)
    assert "left no exit code" in str(verdict(tmp_path))


def test_slurms_own_word_comes_first(tmp_path: Path) -> None:
    write(tmp_path, error_rank0="connection closed", exit_rank0="1", slurm_exit_code="1")
    assert "time limit" in str(verdict(tmp_path, JobState("TIMEOUT")))
    assert "NODE_FAIL" in str(verdict(tmp_path, JobState("NODE_FAIL")))


def test_a_job_that_ended_well(tmp_path: Path) -> None:
    write(tmp_path, exit_rank0="0", slurm_exit_code="0")
    check("7", JobState("COMPLETED"), tmp_path, ranks=1)
