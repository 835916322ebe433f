"""Without this, `repro doctor` could call a broken machine well, hang on it, litter a results folder or print a key.

Most checks run for real on this machine. GPUs and Slurm are played by small programs put first on PATH; an NCCL group
is not covered here.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from repro import doctor
from repro.comm.transport.availability import available
from repro.doctor import Check, machine, software

FAKE_KEY = "local-" + "0123456789abcdef" * 3


def play(folder: Path, program: str, script: str) -> None:
    """Put a shell script of that name into `folder`."""
    path = folder / program
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, apart from the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def assert_advises(check: Check, state: str, *says: str) -> None:
    assert check.state == state, check
    for text in says:
        assert text in f"{check.detail} {check.fix}"
    assert check.fix
    assert "\n" not in check.detail + check.fix


def test_this_machine_passes_and_its_folders_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    started = time.monotonic()
    found = doctor.checks(work / "results", Path("data") / "prepared")
    assert time.monotonic() - started < 60  # about 6 s alone on two cores
    assert [check for check in found if check.state == "fail"] == []
    for name in ("Python", "Version train", "Operators", "Ranks (gloo)", "Results folder", "Data folder", "W&B"):
        assert name in [check.name for check in found]
    assert list(work.rglob("*")) == []
    doctor.print_checks(found)
    printed = capsys.readouterr().out
    assert all(check.detail in printed for check in found)


def test_what_is_not_ok_is_printed_with_its_fix(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.print_checks(
        [
            Check(name="A", state="fail", detail="is broken", fix="mend it"),
            Check(name="Long", state="ok", detail="fine"),
        ]
    )
    assert capsys.readouterr().out == (
        "fail  A     is broken\n            -> mend it\nok    Long  fine\n2 checks: 1 failed, 0 with a warning\n"
    )


# Packages


@pytest.mark.parametrize(
    "installed",
    [
        {},
        {**software.TRAINS["cpu"], "torch": "2.14.1"},  # torch of the other train
        {**software.TRAINS["cpu"], "fbgemm-gpu": "1.9.0"},  # what plain `pip install torchrec` brings beside it
        {**software.TRAINS["cuda"], "fbgemm-gpu-cpu": "1.8.0"},  # both builds of FBGEMM
        {"torch": "2.13.0", "torchrec": "1.8.0"},
    ],
)
def test_a_broken_train_fails(installed: dict[str, str]) -> None:
    assert_advises(software.version_train(installed), "fail", "rm -rf .venv")


@pytest.mark.parametrize(("train", "build"), [("cpu", "+cpu"), ("cpu", ""), ("cuda", "+cu130")])
def test_torchs_build_label_does_not_break_a_train(train: str, build: str) -> None:
    versions = software.TRAINS[train]
    assert software.train_name({**versions, "torch": versions["torch"] + build}) == train


def test_operators_that_do_not_load_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "raise ImportError('libtorch_cuda.so: cannot open shared object file')"
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", broken))
    assert_advises(doctor.operators(), "fail", "libtorch_cuda.so", "rm -rf .venv")


def test_operators_that_crash_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", "import os; os.abort()"))
    assert_advises(doctor.operators(), "fail", "SIGABRT")


# Transports


def test_each_transport_has_a_line_that_says_what_it_lacks() -> None:
    found = {check.name.removeprefix("Transport "): check for check in doctor.transports()}
    assert list(found) == [way.name for way in available()]
    for way in available():
        assert way.missing in found[way.name].detail
        assert ("can be used" in found[way.name].detail) == (not way.missing)


def test_a_transport_that_recipes_name_warns_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = """print('{"host_ring": "PyTorch was built without gloo", "copy_engine": "no CUDA GPU"}')"""
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", answer))
    ring, copies = doctor.transports()
    assert_advises(ring, "warn", "without gloo", "host_ring")
    assert (copies.state, copies.detail) == ("ok", "not here: no CUDA GPU")


def test_transports_that_cannot_be_looked_at_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", "raise ImportError('libtorch.so')"))
    (check,) = doctor.transports()
    assert_advises(check, "fail", "libtorch.so")


def test_too_old_a_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "PYTHON", (99, 0))
    assert_advises(software.python(), "fail", "99.0")


def test_missing_notebook_packages_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.importlib.util, "find_spec", lambda name: None if name == "ipykernel" else object())
    assert_advises(software.jupyter(), "warn", "ipykernel not installed")


# Groups


def test_a_hanging_group_fails_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    hang = f"import os, time; print(os.getpid(), file=open({str(pids)!r}, 'a'), flush=True); time.sleep(300)"
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", hang))
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 2)
    started = time.monotonic()
    assert_advises(doctor.group("gloo"), "fail", "no answer in 2 s", "loopback")
    assert time.monotonic() - started < 30
    for pid in pids.read_text().split():
        assert not Path("/proc", pid).exists()


def test_a_rank_that_dies_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peer would wait for it until the time is up."""
    dies = "import sys, time; time.sleep(300) if sys.argv[2] == '0' else sys.exit('Connection refused')"
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", dies))
    started = time.monotonic()
    assert_advises(doctor.group("gloo"), "fail", "Connection refused")
    assert time.monotonic() - started < 30


def test_nccls_advice_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PROBE", (sys.executable, "-c", "import sys; sys.exit('NCCL error')"))
    assert_advises(doctor.group("nccl"), "fail", "NCCL error", "NCCL_DEBUG")


# Folders


@pytest.mark.parametrize("under", ["file", "file/deeper"])
def test_an_unwritable_folder_fails(tmp_path: Path, under: str) -> None:
    """Under a regular file not even root can write; permission bits would not stop it."""
    (tmp_path / "file").write_text("")
    assert_advises(
        machine.folder("Results folder", "--results", tmp_path / under), "fail", "cannot be written", "--results"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not stop root")
def test_a_read_only_folder_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert_advises(machine.folder("Data folder", "--data", tmp_path / "new"), "fail", "Permission denied", "--data")
    tmp_path.chmod(0o700)


def test_a_full_disk_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "FREE_DISK_GIB", 1e9)
    assert_advises(machine.folder("Data folder", "--data", tmp_path), "warn", "only", "--data")


def test_little_memory_or_one_core_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CORES", 10_000)
    assert_advises(machine.cpu_and_memory(), "warn", "cores")
    monkeypatch.setattr(machine, "MEMORY_GIB", 1e9)
    assert_advises(machine.cpu_and_memory(), "warn", "memory")


# GPUs


def test_gpus_are_read_from_the_driver(programs: Path) -> None:
    play(
        programs,
        "nvidia-smi",
        "echo 'NVIDIA H100 80GB HBM3, 81559, 580.95.05'; echo 'NVIDIA H100 80GB HBM3, 81559, 580.95.05'",
    )
    found = machine.find_gpus()
    assert found.names == ("NVIDIA H100 80GB HBM3",) * 2
    check = machine.gpus(found, "cuda")
    assert (check.state, check.detail) == ("ok", "2 x NVIDIA H100 80GB HBM3 (80 GiB), driver 580.95.05")
    assert_advises(machine.gpus(found, "cpu"), "warn", "ACCELERATOR=cuda")


def test_a_gpu_without_memory_of_its_own_is_read(programs: Path) -> None:
    play(programs, "nvidia-smi", "echo 'NVIDIA GB10, [N/A], 580.95.05'")
    assert machine.gpus(machine.find_gpus(), "cuda").state == "ok"


def test_an_old_driver_warns(programs: Path) -> None:
    play(programs, "nvidia-smi", "echo 'NVIDIA A100-SXM4-40GB, 40960, 535.183.01'")
    assert_advises(machine.gpus(machine.find_gpus(), "cuda"), "warn", "580")


@pytest.mark.parametrize(
    "script", ["echo 'NVIDIA-SMI has failed because it could not reach the driver' >&2; exit 9", "exit 0"]
)
def test_a_driver_that_does_not_answer_warns(programs: Path, script: str) -> None:
    play(programs, "nvidia-smi", script)
    assert_advises(machine.gpus(machine.find_gpus(), "cpu"), "warn", "nvidia-smi does not work", "driver")


def test_no_gpu_is_well_unless_the_cuda_packages_are_there(programs: Path) -> None:
    assert machine.gpus(machine.find_gpus(), "cpu").state == "ok"
    assert_advises(machine.gpus(machine.find_gpus(), "cuda"), "warn", "ACCELERATOR=cpu")


# Slurm


def test_a_cluster_that_answers(programs: Path) -> None:
    play(programs, "sbatch", "exit 0")
    play(programs, "sinfo", "echo 'n1 debug*'; echo 'n2 debug*'; echo 'n2 long'")
    check = machine.slurm()
    assert (check.state, check.detail) == ("ok", "2 nodes in debug, long")


def test_no_slurm_is_well(programs: Path) -> None:
    assert machine.slurm().state == "ok"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("exit 0", "no node"),
        ("exec /bin/sleep 60", "no answer in 1 s"),
    ],
)
def test_a_cluster_that_does_not_answer_warns(
    programs: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(machine, "ANSWER_SECONDS", 1)
    play(programs, "sbatch", "exit 0")
    play(programs, "sinfo", script)
    assert_advises(machine.slurm(), "warn", says, "slurmctld")


def test_half_of_slurms_programs_warn(programs: Path) -> None:
    play(programs, "sinfo", "exit 0")
    assert_advises(machine.slurm(), "warn", "sbatch is not")


# W&B


def test_a_key_is_used_and_never_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", FAKE_KEY)
    check = software.wandb()
    doctor.print_checks([check])
    out, err = capfd.readouterr()
    assert (check.state, "logged in: runs go online" in check.detail) == ("ok", True)
    assert FAKE_KEY not in out + err + check.detail + check.fix
    assert FAKE_KEY[6:] not in out + err


def test_without_credentials_runs_are_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    check = software.wandb()
    assert (check.state, "offline" in check.detail) == ("ok", True)


def test_an_error_of_wandb_is_named_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise ValueError(f"bad key {FAKE_KEY}")

    monkeypatch.setattr("repro.tracking.wandb_sink.logged_in", refuse)
    check = software.wandb()
    assert_advises(check, "warn", "ValueError", "wandb login")
    assert FAKE_KEY not in check.detail + check.fix
