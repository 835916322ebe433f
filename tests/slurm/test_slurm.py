"""Without these a job could outlive the command that waits for it, a failed job end in a page of text or in none, or a
run in a Slurm job train something else than the same run on this machine.

A real Slurm (munge, controller, four virtual nodes on this host) and the real command. Not covered: nodes that are
hosts of their own, with their clocks and file systems; accounting; GPUs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.ladder import MEASURED
from experiments.presets import BALANCE
from repro.config import RunConfig
from tests.slurm.cluster import Cluster
from tests.slurm.launched import ROOT, Launched, assert_says

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]

SHORT = replace(MEASURED, experiment="short", arm=BALANCE, dataset="tiny", batch=4, steps=3, warmup_steps=0)
LONG = replace(SHORT, experiment="long", batch=1, steps=1400)
"""Of many steps, to be ended while it runs."""
SECRET = "planted-5e1f0c"

Start = Callable[..., Launched]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "repro.cli", "prepare", "tiny", "--data", str(folder)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=200)
    return folder


@pytest.fixture
def start(cluster: Cluster, data: Path, tmp_path: Path) -> Iterator[Start]:
    """Start `repro run` of a config in a fresh results folder, as a job of two nodes with one rank each."""
    runs: list[Launched] = []

    def started(config: RunConfig, *arguments: str, executor: str = "slurm", **changes: object) -> Launched:
        recipe = tmp_path / f"{config.experiment}.json"
        recipe.write_text(json.dumps([config.to_dict()]))
        options = ["--executor", "slurm", "--slurm", "ranks_per_node=1"] if executor == "slurm" else []
        where = {"results": tmp_path / executor, "data": data, "environment": cluster.environment, **changes}
        runs.append(Launched("run", str(recipe), *options, *arguments, **where))  # type: ignore[arg-type]
        return runs[-1]

    yield started
    for run in runs:
        run.kill()  # in case the test has failed before its end
    cluster.cancel_all()


def assert_nothing_is_left(run: Launched, cluster: Cluster) -> None:
    assert cluster.jobs() == []
    assert run.left_behind() == []
    assert run.records() == []


def test_a_job_trains_what_local_ranks_train_and_learns_no_secret(
    cluster: Cluster, start: Start, tmp_path: Path
) -> None:
    secrets = {"WANDB_API_KEY": SECRET, "NCCL_TOKEN": SECRET, "SBATCH_PARTITION": "nowhere", "NCCL_DEBUG": "WARN"}
    hostile = tmp_path / "a b$(touch pwned)'\""
    job = start(SHORT, environment={**cluster.environment, **secrets}, results=hostile)
    probe = cluster.folder / "state"
    stored: list[bytes] = []

    def saw_environment() -> bool:
        stored.extend(path.read_bytes() for path in probe.glob("hash*/job*/environment"))
        return bool(stored)

    job.wait_until(saw_environment)
    done = job.ended()
    assert done.returncode == 0, done.stderr
    assert "running on n[1-2]" in done.stdout
    here = start(SHORT, executor="local")
    assert here.ended().returncode == 0
    (of_job,), (of_ranks,) = job.records(), here.records()
    assert of_job["metrics"]["ne"]["value"] == of_ranks["metrics"]["ne"]["value"]  # type: ignore[index]
    assert any("2 nodes with 1 ranks each" in note for note in of_job["notes"])  # type: ignore[attr-defined]
    assert b"NCCL_DEBUG=WARN" in stored[0]
    places = [path for folder in (cluster.folder, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in places if SECRET.encode() in path.read_bytes()]
    assert SECRET.encode() not in b"".join(stored)
    assert "pwned" not in {path.name for path in places}


ONE_EXPERIMENT = """
import json, sys
from pathlib import Path
import experiments, repro.cli
from experiments.experiment import Experiment
from repro.config import from_dict

runs = tuple(from_dict(run) for run in json.loads(Path(sys.argv.pop(1)).read_text()))
experiments.EXPERIMENTS = (Experiment(name="short", figure="", question="?", expected="", duration="", runs=runs),)
repro.cli.NOTEBOOKS = Path("/nonexistent")
sys.exit(repro.cli.main(sys.argv[1:]))
"""
"""`repro` of one small experiment and no notebooks."""


def test_reproduce_sends_what_is_measured_as_jobs_and_does_the_rest_here(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    recipe, settings = tmp_path / "short.json", tmp_path / "site.toml"
    simulated = replace(SHORT, mode="simulated", cluster="h100_paper")
    recipe.write_text(json.dumps([SHORT.to_dict(), simulated.to_dict()]))
    settings.write_text('partition = "nope"\nranks_per_node = 1\nextra = ["--comment=mine"]\n')
    results = tmp_path / "results"
    options = ["--executor", "slurm", "--slurm-file", str(settings), "--slurm", "partition=main"]
    folders = ["--results", str(results), "--data", str(data), "--wandb", "disabled"]
    done = subprocess.run(
        [sys.executable, "-c", ONE_EXPERIMENT, str(recipe), "reproduce", *options, *folders],
        env={**cluster.environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("running on n[1-2]") == 1
    records = [json.loads(path.read_text(encoding="utf-8")) for path in results.rglob("record.json")]
    notes = {record["config"]["mode"]: " ".join(record["notes"]) for record in records}
    assert "Slurm job of 2 nodes" in notes["measured"] and "Slurm" not in notes["simulated"]
    assert all(record["provenance"]["command"] == " ".join(["repro run short", *options]) for record in records)
    script = next(results.rglob("job.sbatch")).read_text(encoding="utf-8")
    assert "#SBATCH --partition=main\n" in script and "#SBATCH --comment=mine\n" in script
    assert (results / "report.html").exists()


def test_an_unknown_partition_is_named(cluster: Cluster, start: Start) -> None:
    run = start(SHORT, "--slurm", "partition=nope")
    assert_says(run.ended(), "--slurm partition=nope", "Invalid partition", code=2)
    assert_nothing_is_left(run, cluster)


def test_scancel_while_running(cluster: Cluster, start: Start) -> None:
    run = start(LONG)
    run.wait_until(run.is_training)
    cluster.run("scancel", *cluster.jobs())
    assert_says(run.ended(), "CANCELLED", "the same command goes on", code=1)
    assert_nothing_is_left(run, cluster)


def test_a_killed_rank_is_named(cluster: Cluster, start: Start) -> None:
    """Its peer fails too, and says more."""
    run = start(LONG)
    run.wait_until(run.is_training)
    os.kill(run.ranks()[1], signal.SIGKILL)
    assert_says(run.ended(), "rank 1: killed by SIGKILL", "rank-1.log", code=1)
    assert_nothing_is_left(run, cluster)


def test_data_that_the_nodes_do_not_see_is_bad_input(cluster: Cluster, start: Start, data: Path) -> None:
    if not cluster.hides:
        pytest.skip("no private mounts here")
    hidden = cluster.hidden / "data"
    shutil.copytree(data, hidden)
    run = start(SHORT, data=hidden)
    assert_says(run.ended(), "rank ", "no prepared data set here", str(hidden), code=2)
    assert_nothing_is_left(run, cluster)


def test_the_time_limit_and_results_that_the_nodes_do_not_see(cluster: Cluster, start: Start) -> None:
    """Together, since each waits: for Slurm's clock, and for a file that a slow file system might still bring."""
    late = start(LONG, "--slurm", "time=1")
    late.wait_until(late.is_training)
    for process in late.ranks().values():
        os.kill(process, signal.SIGSTOP)  # so that it neither ends before nor takes this machine's time
    cluster.run(
        "scontrol", "update", f"JobId={cluster.jobs()[0]}", "EndTime=now+1"
    )  # a minute is Slurm's shortest limit
    if cluster.hides:
        unseen = start(SHORT, results=cluster.hidden / "results")
        assert_says(unseen.ended(), "left no exit code", "do all nodes share the folder", "--results", code=1)
        assert unseen.left_behind() == [] and unseen.records() == []
    assert_says(late.ended(), "time limit", "--slurm time=", code=1)
    assert_nothing_is_left(late, cluster)


def test_results_that_cannot_be_written_submit_nothing(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = start(SHORT, results=tmp_path / "file" / "results")
    assert_says(run.ended(), "cannot write results here", "--results", code=2)
    assert cluster.jobs() == []


def test_ctrl_c_while_queued(cluster: Cluster, start: Start) -> None:
    run = start(SHORT, "--slurm", "extra=--hold")
    run.wait_until(cluster.jobs)
    time.sleep(2)
    run.ctrl_c()
    done = run.ended()
    assert_says(done, "interrupted", code=1)
    assert done.stdout.count("queued (JobHeldUser)") == 1
    assert_nothing_is_left(run, cluster)


def test_ctrl_c_before_sbatch_has_told_the_job(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "sbatch"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\njob=$({shutil.which("sbatch")} "$@")\nsleep 3\necho "$job"\n')
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    run = start(SHORT, "--slurm", "extra=--hold", environment={**cluster.environment, "PATH": path})
    run.wait_until(cluster.jobs)
    run.ctrl_c()
    assert_says(run.ended(), "interrupted", code=1)
    assert_nothing_is_left(run, cluster)


def test_ctrl_c_while_running(cluster: Cluster, start: Start) -> None:
    run = start(LONG)
    run.wait_until(run.is_training)
    run.ctrl_c()
    time.sleep(0.2)
    run.ctrl_c()  # of an impatient user
    assert_says(run.ended(), "interrupted", code=1)
    assert_nothing_is_left(run, cluster)


def test_a_job_that_outlived_its_command_is_not_joined_by_another(cluster: Cluster, start: Start) -> None:
    """Two jobs would write the same files, and a record could be made of parts of both."""
    killed = start(SHORT, "--slurm", "extra=--hold")
    killed.wait_until(cluster.jobs)
    killed.kill()
    (job,) = cluster.jobs()
    assert_says(start(SHORT).ended(), f"Slurm job {job} of an earlier command still works", f"`scancel {job}`", code=2)
    assert cluster.jobs() == [job]
    assert killed.records() == []


def test_terminated_while_the_controller_is_away(cluster: Cluster, start: Start) -> None:
    """A controller that does not answer has not said that the job is gone."""
    run = start(SHORT, "--slurm", "extra=--hold")
    run.wait_until(cluster.jobs)
    cluster.stop_controller()
    run.terminate()
    time.sleep(3)
    cluster.start_controller()
    assert_says(run.ended(), "interrupted", code=1)
    assert_nothing_is_left(run, cluster)
