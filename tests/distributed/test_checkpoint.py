"""Without this, a run that is cut short and goes on could train something else than one that was not, without a word:
a gradient lost on its way, an optimizer that starts anew, a batch trained twice. Or a crash at the wrong moment could
leave a checkpoint that cannot be read, or one of another run be taken for it.

Ranks are really killed. Not covered: GPUs, and a power cut (files are synced, but nothing here cuts the power).
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing import ProcessExitedException

import repro.pipeline.checkpoint
from experiments.presets import BALANCE_PRIORITY
from repro.comm.groups import Groups
from repro.config import Arm, BalanceConfig, CheckpointConfig, ModelConfig, RunConfig
from repro.device import Device
from repro.embedding.prioritized import PrioritizedEmbeddings
from repro.errors import InputError, RunError
from repro.execution.assignment import Assignment
from repro.execution.base import RunResult
from repro.execution.measured import BLOCK_STEPS, train_runs, unpaced
from repro.execution.parts import gather
from repro.pipeline.checkpoint import IndexReader, position, restore, save, state_of
from repro.pipeline.checkpoint_folder import belonging, newest, read_meta
from repro.pipeline.instrument import data_parallel
from repro.pipeline.train_step import START, Position, Training
from repro.timeline.ledger import build_ledger
from repro.timeline.recorder import Recorder
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


def _configs(world: int, every: int, arms: Sequence[Arm] = ARMS) -> list[RunConfig]:
    return [replace(CONFIG, arm=arm, gpus=world, checkpoint=CheckpointConfig(every=every)) for arm in arms]


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


Reference = tuple[list[Any], dict[str, RunResult]]
"""Final states by rank and arm, results by arm."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Without a checkpoint."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    configs = _configs(2, 0)
    return run_ranks(_train, configs, folder, None, world=2), _results(configs, folder)


@pytest.fixture(scope="module")
def saved_often(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    """With a checkpoint after every step."""
    folder = tmp_path_factory.mktemp("saved_often")
    return run_ranks(_train, _configs(2, 1), folder, None, world=2), folder


def _killed(configs: list[RunConfig], folder: Path, kill: Kill, world: int = 2) -> None:
    with pytest.raises(ProcessExitedException) as raised:
        run_ranks(_train, configs, folder, kill, world=world)
    assert raised.value.signal_name in ("SIGKILL", "SIGABRT", "SIGTERM")


def test_saving_changes_no_number(uninterrupted: Reference, saved_often: tuple[list[Any], Path]) -> None:
    """Draining the pipeline before each step included."""
    states, folder = saved_often
    _assert_same(states, uninterrupted[0])
    for arm, result in _results(_configs(2, 1), folder).items():
        assert result.facts == uninterrupted[1][arm].facts
        assert len(result.notes) == 1 and result.notes[0].startswith(f"checkpoints: {STEPS - 1}, ")


def test_the_newest_two_stay(saved_often: tuple[list[Any], Path]) -> None:
    for arm in ARMS:
        found = sorted(path.name for path in (saved_often[1] / arm.name / "checkpoints").iterdir())
        assert found == [f"step-{STEPS - 2:08d}", f"step-{STEPS - 1:08d}"]


def test_a_rank_killed_after_step_9(uninterrupted: Reference, tmp_path: Path) -> None:
    """In the last arm; the others have done 10 by then, and all go on from 8."""
    configs = _configs(2, EVERY)
    _killed(configs, tmp_path, ("step", 1, BLOCK_STEPS * (len(ARMS) - 1) + 9))
    assert {newest(tmp_path / arm.name).name for arm in ARMS} == {"step-00000008"}  # type: ignore[union-attr]
    states = run_ranks(_train, configs, tmp_path, None, world=2)
    _assert_same(states, uninterrupted[0])
    for arm, result in _results(configs, tmp_path).items():
        assert result.facts == uninterrupted[1][arm].facts
        assert "gone on from the checkpoint after step 8: " in result.notes[1]
        ledger = build_ledger(result.timeline)
        assert ledger.steps.tolist() == list(range(STEPS))
        # Starting the ranks again takes seconds; no step of these takes a tenth of one.
        assert ledger.window_ns.max() < 1e9


def test_ranks_killed_again_and_again(uninterrupted: Reference, tmp_path: Path) -> None:
    """At random moments, and when the tensors of a checkpoint are written and it is not complete yet."""
    configs, random = _configs(2, EVERY), np.random.default_rng(3)
    for _ in range(2):
        _killed(configs, tmp_path, ("seconds", int(random.integers(2)), float(random.uniform(0, 0.4))))
    _killed(configs, tmp_path, ("writing", 0, 2))
    left = [path for arm in ARMS for path in (tmp_path / arm.name / "checkpoints").glob(".*.partial")]
    assert len(left) == 1 and (left[0] / ".metadata").exists()
    states = run_ranks(_train, configs, tmp_path, None, world=2)
    _assert_same(states, uninterrupted[0])
    for arm, result in _results(configs, tmp_path).items():
        assert result.facts == uninterrupted[1][arm].facts
    assert not left[0].exists()


def test_with_three_ranks_the_order_of_sums_is_the_same_too(tmp_path: Path) -> None:
    """Two ranks' sum has no order. TorchRec's DDP regroups its buckets at another step than ours."""
    arms = (ARMS[0], BALANCE_PRIORITY)
    whole, configs = _configs(3, 0, arms), _configs(3, EVERY, arms)
    reference = run_ranks(_train, whole, tmp_path / "whole", None, world=3)
    _killed(configs, tmp_path, ("step", 2, BLOCK_STEPS + 9), world=3)
    _assert_same(run_ranks(_train, configs, tmp_path, None, world=3), reference)


# What a position means beside the data


def _halves(groups: Groups, device: Device, folder: Path) -> dict[str, Any]:
    """Rows after 8 steps under a schedule, in one go and in two, with gradients on their way at the cut; what AutoTune
    knew at the cut, and later."""
    dataset: Any = InMemoryRequests(STEPS * BATCH * groups.world)
    on_hosts: Any = groups.balance

    def training(arm: Arm, begin_at: Position = START) -> Training:
        recorder = Recorder(device, rank=groups.rank, transport=device.backend)
        config = replace(CONFIG, arm=arm, steps=STEPS)
        made = Training(
            config, dataset, device, groups, recorder, lambda: 0.1 / (1 + made.steps_done), position=begin_at
        )
        return made

    def cut(arm: Arm) -> tuple[Training, Training]:
        first = training(arm)
        _delay_exclusive_gradients(first)
        first.run(6)
        what = belonging(first.config, "data", {}, "code")
        checkpoint = save(first, folder / arm.name, what, run_ns=0, keep=1, group=on_hosts)
        second = training(arm, position(read_meta(checkpoint)))
        restore(second, checkpoint, on_hosts)
        return first, second

    whole = training(BALANCE_PRIORITY)
    whole.run(8)
    _, second = cut(BALANCE_PRIORITY)
    second.run(2)
    halves: dict[str, Any] = {
        "whole": whole.outcome().built.local_rows(),
        "in two": second.outcome().built.local_rows(),
    }
    tuned = Arm(name="tuned", partition="vbs_cost", balance=BalanceConfig(autotune=True))
    before, after = cut(tuned)
    halves["tuned"] = [before.tuned, after.tuned]
    after.run(6)
    halves["tuned"].append(after.tuned)
    return halves


def _delay_exclusive_gradients(training: Training) -> None:
    """So that those of the last step are on their way when it is saved."""
    embeddings = data_parallel(training.built.model).module.embeddings
    if isinstance(embeddings, PrioritizedEmbeddings):
        apply: Any = embeddings._apply_exclusive

        def late(*arguments: Any) -> None:
            time.sleep(0.3)
            apply(*arguments)

        embeddings._apply_exclusive = late  # type: ignore[method-assign]


def test_schedules_and_autotune_go_on_where_they_were(tmp_path: Path) -> None:
    ranks = run_ranks(_halves, tmp_path, world=2)
    for rank in ranks:
        for one, other in zip(rank["whole"], rank["in two"], strict=True):
            assert torch.equal(one[2], other[2])
        before, after, later = rank["tuned"]
        assert before.steps > 0 and after == before and later.steps > before.steps
    assert ranks[0]["tuned"] == ranks[1]["tuned"]


# What is refused


def _restored(groups: Groups, device: Device, checkpoint: Path, changes: dict[str, Any]) -> str:
    """What there is to say when a training goes on from the checkpoint."""
    dataset: Any = InMemoryRequests(STEPS * BATCH * groups.world)
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    training = Training(replace(CONFIG, **changes), dataset, device, groups, recorder)
    on_hosts: Any = groups.balance
    try:
        restore(training, checkpoint, on_hosts)
    except InputError as error:
        return str(error)
    return "restored"


def test_a_damaged_checkpoint_or_another_model_is_named(saved_often: tuple[list[Any], Path], tmp_path: Path) -> None:
    checkpoint = tmp_path / "step-00000011"
    shutil.copytree(saved_often[1] / "torchrec" / "checkpoints" / checkpoint.name, checkpoint)
    wider = replace(CONFIG.model, dim=16)
    for said in run_ranks(_restored, checkpoint, {"model": wider}, world=2):
        assert re.search(r"step-00000011: \S+ is \(.*\), the model has \(", said)
    flipped = checkpoint / "__0_0.distcp"
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    for said in run_ranks(_restored, checkpoint, {}, world=2):
        assert "__0_0.distcp: is damaged, its SHA-256 is another; remove " in said


class _Touch:
    """Pickled, it makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_pickled_is_run(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Touch(tmp_path / "touched")))
    with pytest.raises(InputError, match="not the index of a checkpoint"):
        IndexReader(tmp_path).read_metadata()
    assert not (tmp_path / "touched").exists()


def _unwritable(groups: Groups, device: Device, folder: Path) -> str:
    """What there is to say when the second checkpoint cannot be written."""
    (run,) = _assignments(_configs(1, EVERY, ARMS[:1]), folder)
    steps = [0]

    def on_step() -> None:
        steps[0] += 1
        if steps[0] == EVERY + 1:
            (run.out / "checkpoints").rename(run.out / "before")
            (run.out / "checkpoints").write_text("in the way")

    try:
        dataset: Any = InMemoryRequests(STEPS * BATCH)
        train_runs([run], dataset, device, groups, unpaced, on_step)
    except RunError as error:
        return str(error)
    return "written"


def test_a_checkpoint_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (said,) = run_ranks(_unwritable, tmp_path, world=1)
    assert said.startswith("checkpoint after step 8: cannot be written (Not a directory: ")
    assert said.endswith("older ones stay")
