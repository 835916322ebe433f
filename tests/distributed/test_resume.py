"""Without this, `repro run` could start a run anew that left a checkpoint, lose the steps before it, count the time in
which the run lay dead as a step's, or fail with a page of Python when the checkpoint does not fit.

The whole way, from `run_all` to the record, with a rank killed from outside. Not covered: Slurm.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from data_prep import sources
from repro.config import Arm, CheckpointConfig, ModelConfig, PaceConfig, RunConfig
from repro.errors import InputError, RunError
from repro.execution.base import RunResult
from repro.launch import runs
from repro.launch.local import run_on_ranks
from repro.launch.runs import Workspace, partial_of, run_all, run_id
from repro.tracking.record import RunRecord

pytestmark = pytest.mark.distributed

STEPS, EVERY = 20, 4
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="emulated",
    arm=Arm(name="balance+priority", partition="fbs_cost", exchange="prioritized"),
    dataset="tiny",
    cluster="workstation_cpu",
    gpus=2,
    batch=16,
    max_uih=100,
    steps=STEPS,
    model=ModelConfig(name="test", layers=1, dim=8, heads=1),
    pace=PaceConfig(
        model=ModelConfig(name="hstu_5l_512d", layers=5, dim=512, heads=4), cluster="h100_paper", time_scale=100
    ),
    checkpoint=CheckpointConfig(every=EVERY),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    sources.prepare("tiny", root / "prepared", key_path=root / "key", log=lambda _: None)
    return root / "prepared"


def _run(config: RunConfig, results: Path, data: Path, log: Callable[[str], None] = print) -> RunRecord:
    (record,) = run_all((config,), Workspace(results=results, data=data, wandb="disabled", log=log), "repro run test")
    return record


def _kill_rank(number: int, folder: Path) -> None:
    """The rank of the run that works in `folder`."""
    for process in psutil.Process().children(recursive=True):
        job = [argument for argument in process.cmdline() if argument.startswith(str(folder))]
        if job and "torch.distributed.run" not in process.cmdline() and process.environ().get("RANK") == str(number):
            os.kill(process.pid, signal.SIGKILL)


def test_a_run_whose_rank_is_killed_goes_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = partial_of(tmp_path / "runs" / "test" / run_id(CONFIG))
    steps = [0]

    def killing(*arguments: Any, on_step: Callable[[], None], **named: Any) -> list[RunResult]:
        def count() -> None:
            steps[0] += 1
            if steps[0] == 2 * EVERY + 1:
                _kill_rank(1, partial)
            on_step()

        return run_on_ranks(*arguments, on_step=count, **named)

    monkeypatch.setattr(runs, "run_on_ranks", killing)
    with pytest.raises(RunError, match="rank"):
        _run(CONFIG, tmp_path, data)
    left = sorted(path.name for path in (partial / "checkpoints").glob("step-*"))
    assert len(left) == 2 and "step-00000008" in left and left[-1] < f"step-{STEPS:08d}"
    monkeypatch.undo()

    meta = partial / "checkpoints" / left[-1] / "meta.json"
    good = meta.read_text()
    raw = json.loads(good)
    raw["belongs_to"]["data_set"] = "another"
    meta.write_text(json.dumps(raw))
    with pytest.raises(InputError, match="data_set differs: 'another' in the checkpoint, "):
        _run(CONFIG, tmp_path, data)
    meta.write_text(good)

    said: list[str] = []
    record = _run(CONFIG, tmp_path, data, said.append)
    at = int(left[-1].removeprefix("step-"))
    assert said[0].endswith(f": was cut short, goes on from the checkpoint after step {at} (--force: anew)")
    assert any(f"gone on from the checkpoint after step {at}: " in note for note in record.notes)
    assert any(f"all {STEPS * 4} deadlines" in note or f"of {STEPS * 4} deadlines" in note for note in record.notes)
    rows = record.steps()
    assert [row["step"] for row in rows] == list(range(STEPS))
    # The dead time is many seconds, a step a small part of one.
    assert max(row["throughput/step_ms"] for row in rows) < 3000
    kept = {path.name for path in record.folder.iterdir()}
    assert {"logs", "logs-of-attempt-1", "record.json"} <= kept and not {"checkpoints", "recorded"} & kept
    assert not partial.exists()

    # In one go, not saved, unpaced: the same numbers.
    whole = replace(CONFIG, mode="measured", pace=None, checkpoint=CheckpointConfig())
    plain = _run(whole, tmp_path, data)
    assert [row["quality/log_loss"] for row in plain.steps()] == [row["quality/log_loss"] for row in rows]
    assert [row.get("bubble/collision_pct") for row in plain.steps()] == [
        row.get("bubble/collision_pct") for row in rows
    ]
    assert plain.metric("ne") == record.metric("ne")
