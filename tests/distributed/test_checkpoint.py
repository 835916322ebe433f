"""Without this, a run that is cut short and goes on could train something else than one that was not, without a word:
a gradient lost on its way, an optimizer that starts anew, a batch trained twice. Or a crash at the wrong moment could
leave a checkpoint that cannot be read, or one of another run be taken for it.

Ranks are really killed. Not covered: GPUs, and a power cut (files are synced, but nothing here cuts the power).
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing import ProcessExitedException

import repro.pipeline.checkpoint
from experiments.presets import BALANCE_PRIORITY
from repro.comm.groups import Groups
from repro.config import Arm, CheckpointConfig, ModelConfig, RunConfig
from repro.device import Device
from repro.execution.assignment import Assignment
from repro.execution.base import RunResult
from repro.execution.measured import train_runs, unpaced
from repro.execution.parts import gather
from repro.pipeline.checkpoint import state_of
from repro.pipeline.checkpoint_folder import belonging, complete, newest
from tests.distributed.ranks import run_ranks
from tests.samples import InMemoryRequests

pytestmark = pytest.mark.distributed

STEPS, EVERY, BATCH = 12, 4, 8
ARMS = (
    Arm(name="torchrec"),
    Arm(name="sdd", exchange="sdd"),
    Arm(name="stale", exchange="stale"),
    Arm(name="balance", partition="fbs_cost"),
    BALANCE_PRIORITY,
)
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="measured",
    arm=ARMS[0],
    dataset="in-memory",
    cluster="workstation_cpu",
    gpus=2,
    batch=BATCH,
    max_uih=40,
    steps=STEPS,
    model=ModelConfig(name="test", layers=2, dim=8, heads=2),
)
Kill = tuple[str, int, float] | None
"""How, which rank, when."""


def _configs(world: int, every: int, steps: int = STEPS) -> list[RunConfig]:
    return [replace(CONFIG, arm=arm, gpus=world, steps=steps, checkpoint=CheckpointConfig(every=every)) for arm in ARMS]


def _assignments(configs: list[RunConfig], folder: Path) -> list[Assignment]:
    runs = []
    for config in configs:
        out = folder / config.arm.name
        out.mkdir(parents=True, exist_ok=True)
        runs.append(
            Assignment(
                config=config,
                out=out,
                run_id=config.arm.name,
                belongs_to=belonging(config, "data", {}, "code"),
                checkpoint=newest(out),
            )
        )
    return runs


def _train(groups: Groups, device: Device, configs: list[RunConfig], folder: Path, kill: Kill) -> Any:
    """Final states by arm."""
    steps = [0]

    def on_step() -> None:
        steps[0] += 1
        if kill is not None and kill[1] == groups.rank:
            if kill[0] == "step" and steps[0] == kill[2]:
                _die()
            if kill[0] == "seconds" and steps[0] == 1:
                threading.Timer(kill[2], _die).start()

    if kill is not None and kill[0] == "writing" and kill[1] == groups.rank:
        _die_in_checkpoint(int(kill[2]))
    dataset: Any = InMemoryRequests(configs[0].steps * BATCH * groups.world)
    done = train_runs(_assignments(configs, folder), dataset, device, groups, unpaced, on_step)
    return {
        config.arm.name: {name: value.clone() for name, value in state_of(one.training, groups.rank).items()}
        for config, one in zip(configs, done, strict=True)
    }


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_checkpoint(number: int) -> None:
    """When the ranks' tensors are written, and before the checkpoint is complete."""
    real, calls = repro.pipeline.checkpoint._described, [0]

    def described(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            _die()
        return real(*arguments)

    repro.pipeline.checkpoint._described = described


def _results(configs: list[RunConfig], folder: Path) -> dict[str, RunResult]:
    return {config.arm.name: gather(config, folder / config.arm.name, config.arm.name) for config in configs}


def _assert_same(states: list[Any], reference: list[Any]) -> None:
    for mine, theirs in zip(states, reference, strict=True):
        for arm in mine:
            assert mine[arm].keys() == theirs[arm].keys()
            for name, value in mine[arm].items():
                assert torch.equal(value, theirs[arm][name]), (arm, name)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], dict[str, RunResult]]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    configs = _configs(2, 0)
    return run_ranks(_train, configs, folder, None, world=2), _results(configs, folder)


def test_killed(uninterrupted: tuple[list[Any], dict[str, RunResult]], tmp_path: Path) -> None:
    configs = _configs(2, EVERY)
    with pytest.raises(ProcessExitedException):
        run_ranks(_train, configs, tmp_path, ("step", 1, 49), world=2)
    assert {arm.name: [p.name for p in complete(tmp_path / arm.name)] for arm in ARMS} == {
        arm.name: ["step-00000004", "step-00000008"] for arm in ARMS
    }
    states = run_ranks(_train, configs, tmp_path, None, world=2)
    _assert_same(states, uninterrupted[0])
    for arm, result in _results(configs, tmp_path).items():
        assert result.facts == uninterrupted[1][arm].facts
        print(result.notes)
