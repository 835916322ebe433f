"""Without these a job could stay in the queue because a command of Slurm's failed once, or a secret of the user's be
stored in the cluster's job records.

Slurm's commands are stand-ins here, which fail as the real ones do; tests/slurm has the real ones.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.errors import InputError, RunError
from repro.launch import slurm_queue
from repro.launch.slurm_queue import JobState, cancel, inherited, state_of, submit
from repro.launch.slurm_settings import SlurmSettings

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
GONE = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of Slurm's commands; each call of scancel is a line in `scancel.calls`."""
    monkeypatch.setattr(slurm_queue, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(slurm_queue, "LEAVE_SECONDS", 0.5)
    monkeypatch.setattr(slurm_queue, "COMMAND_SECONDS", 5)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write(tmp_path, "scancel", f'echo "$@" >>{tmp_path}/scancel.calls')
    return tmp_path


def write(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def scontrol(folder: Path, *answers: str) -> None:
    """A scontrol that gives these answers in turn, the last for ever; one that starts with `slurm_` is an error."""
    for number, answer in enumerate(answers):
        (folder / f"answer{number}").write_text(answer + "\n")
    write(
        folder,
        "scontrol",
        f"""n=$(cat {folder}/asked 2>/dev/null || echo 0); echo $((n + 1)) >{folder}/asked
[ "$n" -lt {len(answers)} ] || n={len(answers) - 1}
if grep -q ^slurm_ {folder}/answer$n; then cat {folder}/answer$n >&2; exit 1; fi; cat {folder}/answer$n""",
    )


def asked(folder: Path) -> int:
    return int((folder / "asked").read_text())


def test_a_controller_that_does_not_answer_has_not_said_gone(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scontrol(stand_in, AWAY, AWAY, "JobId=7 JobState=COMPLETING Reason=None NodeList=n1", GONE)
    cancel("7")
    assert asked(stand_in) == 4
    assert set((stand_in / "scancel.calls").read_text().split()) == {"7"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("answer", [AWAY, "JobId=7 JobState=COMPLETING Reason=None"])
def test_a_job_that_may_still_be_there_is_named(
    answer: str, stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scontrol(stand_in, answer)
    cancel("7")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "job 7 did not end" in said and "`scancel 7`" in said
    assert ("does not answer" in said) == (answer == AWAY)


def test_why_a_job_waits(stand_in: Path) -> None:
    waiting = "JobId=7 JobName=x JobState=PENDING Reason=PartitionTimeLimit Dependency=(null) ReqNodeList=z NodeList="
    scontrol(stand_in, waiting, "JobId=7 JobState=RUNNING Reason=None ReqNodeList=(null) NodeList=n[1-2]", "?")
    assert str(state_of("7")) == "queued (PartitionTimeLimit)"
    assert str(state_of("7")) == "running on n[1-2]"
    assert state_of("7") is None
    assert not JobState("PENDING").is_over and JobState("NODE_FAIL").is_over


def test_sbatch_that_does_not_answer(stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_queue, "COMMAND_SECONDS", 0.3)
    write(stand_in, "squeue", "exit 0")
    write(stand_in, "sbatch", "exec sleep 20")
    with pytest.raises(RunError, match="whether the job is queued, squeue will tell"):
        submit(tmp_path / "job.sbatch", SlurmSettings())


@pytest.mark.parametrize("fails", ["Socket timed out on send/recv operation", "Unable to contact slurm controller"])
def test_a_submission_whose_answer_is_lost(fails: str, stand_in: Path, tmp_path: Path) -> None:
    """The job may be in the queue all the same: then it is followed, and can be cancelled."""
    script = tmp_path / "a folder" / "job.sbatch"
    write(stand_in, "sbatch", f'echo "sbatch: error: Batch job submission failed: {fails}" >&2; exit 1')
    write(stand_in, "squeue", "exit 0")
    with pytest.raises(RunError, match=rf"{fails}.*; whether the job is queued, squeue will tell"):
        submit(script, SlurmSettings())
    once = f"[ -e {tmp_path}/once ] && echo '9 {script}'; touch {tmp_path}/once; echo '8 {tmp_path}/other'"
    write(stand_in, "squeue", once)
    assert submit(script, SlurmSettings()) == "9"


def test_a_job_of_the_same_script_is_not_joined(stand_in: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    write(stand_in, "squeue", f"echo '7 {script}'")
    write(stand_in, "sbatch", f"touch {tmp_path}/submitted; echo 8")
    with pytest.raises(InputError, match="`scancel 7` ends it"):
        submit(script, SlurmSettings())
    assert not (tmp_path / "submitted").exists()


NAMES = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1, max_size=30)


@given(NAMES, st.sampled_from(["", "NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "TRITON_", "SLURM_", "SBATCH_"]),
       st.sampled_from(["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSPHRASE", "CREDENTIALS"]))  # fmt: skip
def test_no_name_of_a_secret_is_inherited(name: str, prefix: str, kind: str) -> None:
    assert inherited({f"{prefix}{name}_{kind}": "x", f"{prefix}{kind}_{name}": "x", kind: "x"}) == {}


def test_what_a_job_inherits() -> None:
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "NCCL_SOCKET_IFNAME": "ib0", "LD_LIBRARY_PATH": "/opt"}
    left = {"WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "https_proxy": "http://me:pw@host", "EDITOR": "vi",
            "SBATCH_PARTITION": "other", "SLURM_JWT": "x", "SLURM_JOB_ID": "3", "BASH_ENV": "/x"}  # fmt: skip
    assert inherited({**kept, **left}) == kept
