"""Without this, an emulated run could compute for another time than the cost model says, let gradients set out before
the emulated device would have them, train something else than a measured run, or hide what it is.

Not covered: whether the cost model is right (`tests/unit/test_sim_compute.py`); ranks so many, or a machine so busy,
that the small real model takes longer than its pace (the run's notes say how often).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from data_prep import sources
from repro.balance.partition import assign
from repro.config import Arm, ModelConfig, NetworkConfig, PaceConfig, RunConfig
from repro.data.batch import collate
from repro.data.dataset import PreparedDataset
from repro.device.paced import sleep_until
from repro.errors import InputError
from repro.execution.base import RunResult, summarize
from repro.execution.emulated import note, pace_of
from repro.launch.local import run_on_ranks
from repro.launch.network import obstacle
from repro.launch.runs import jobs
from repro.pipeline.ops import Op

pytestmark = pytest.mark.distributed

STEPS, WARMUP = 8, 2
TORCHREC, BALANCE = Arm(name="torchrec"), Arm(name="balance", partition="fbs")
CONFIG = RunConfig(
    experiment="test",
    figure="",
    mode="emulated",
    arm=TORCHREC,
    dataset="tiny",
    cluster="workstation_cpu",
    gpus=2,
    batch=64,
    max_uih=200,
    steps=STEPS,
    warmup_steps=WARMUP,
    model=ModelConfig(name="test", layers=2, dim=8, heads=1),
    network=NetworkConfig(rate_mbit=200),
    pace=PaceConfig(
        model=ModelConfig(name="hstu_5l_512d", layers=5, dim=512, heads=4), cluster="h100_paper", time_scale=300
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    return sources.prepare("tiny", root / "prepared", key_path=root / "key", log=lambda _: None)


def _run(configs: list[RunConfig], folder: Path, out: Path) -> list[RunResult]:
    outs = [out / config.arm.name for config in configs]
    for one in outs:
        one.mkdir()
    return run_on_ranks(configs, folder, outs, [config.arm.name for config in configs])


@pytest.fixture(scope="module")
def emulated(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    configs = [replace(CONFIG, arm=arm) for arm in (TORCHREC, BALANCE)]
    assert jobs(configs) == [tuple(configs)]
    results = _run(configs, folder, tmp_path_factory.mktemp("emulated"))
    return {config.arm.name: result for config, result in zip(configs, results, strict=True)}


def _expected(config: RunConfig, dataset: PreparedDataset, step: int, rank: int) -> tuple[float, float]:
    """Seconds of forward and backward, from the data set alone."""
    rows = dataset.global_rows(step, config.global_batch)
    lengths = dataset.uih_lengths(rows, config.max_uih)
    candidates = dataset.candidate_counts(rows)
    rank_G = (
        np.arange(rows.size) % config.gpus
        if config.arm.partition == "identity"
        else assign(config.arm.partition, lengths, config.gpus, candidates_S=candidates)
    )
    share = dataset.read(rows[rank_G == rank], config.max_uih)
    return pace_of(config, rank)(collate(share, 1))


@pytest.mark.parametrize("arm", [TORCHREC, BALANCE], ids=lambda arm: arm.name)
def test_compute_lasts_what_the_cost_model_says(arm: Arm, emulated: dict[str, RunResult], folder: Path) -> None:
    dataset, config = PreparedDataset.open(folder), replace(CONFIG, arm=arm)
    spans = emulated[arm.name].timeline.spans
    ratios = []
    for step in range(STEPS):
        for rank in range(config.gpus):
            expected = _expected(config, dataset, step, rank)
            assert min(expected) > 0.05
            for op, seconds in zip((Op.DENSE_FORWARD, Op.DENSE_BACKWARD), expected, strict=True):
                lasted = sum(s.duration_ns for s in spans if (s.step, s.rank, s.op) == (step, rank, op.label)) / 1e9
                ratios.append(lasted / seconds)
    # Never shorter; longer where other processes had the core when the sleep was over.
    assert min(ratios) > 0.98, ratios
    assert median(ratios) < 1.02, ratios


def test_gradients_set_out_when_the_device_would_have_them(emulated: dict[str, RunResult], folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    spans = emulated["torchrec"].timeline.spans
    for step in range(STEPS):
        for rank in range(CONFIG.gpus):
            mine = [span for span in spans if (span.step, span.rank) == (step, rank)]
            began = min(span.start_ns for span in mine if span.op == Op.DENSE_BACKWARD.label)
            _, backward = _expected(CONFIG, dataset, step, rank)
            for op in (Op.GRADIENT_ALL_TO_ALL, Op.DENSE_ALL_REDUCE):
                set_out = [span.start_ns for span in mine if span.op == op.label]
                assert set_out and min(set_out) >= began + 0.99e9 * backward, op


def test_a_result_says_what_it_is(emulated: dict[str, RunResult]) -> None:
    for result in emulated.values():
        assert result.timeline.mode == "emulated"
        said = " ".join(result.notes)
        assert "300 times as long as the cost model says for hstu_5l_512d on one H100" in said
        assert f"of {STEPS * CONFIG.gpus * 2} deadlines" in said or f"all {STEPS * CONFIG.gpus * 2} deadlines" in said
        assert ("200 Mbit/s a rank" in said) or ("plain loopback, unshaped, instead of 200 Mbit/s" in said)
        if obstacle() is not None:
            assert str(obstacle()) in said


def test_metrics_come_out_as_of_a_measured_run(emulated: dict[str, RunResult]) -> None:
    for arm, result in emulated.items():
        metrics, rows = summarize(replace(CONFIG, arm=Arm(name=arm)), result)
        assert {"straggler_pct", "exposed_embedding_ms", "step_ms", "ne"} <= set(metrics)
        assert len(rows) == STEPS


def test_an_emulated_run_trains_what_a_measured_one_does(
    emulated: dict[str, RunResult], folder: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, mode="measured", pace=None, network=NetworkConfig())
    (measured,) = _run([config], folder, tmp_path)
    assert [fact.loss_sum for fact in emulated["torchrec"].facts] == [fact.loss_sum for fact in measured.facts]
    assert not any("emulated" in note or "pace" in note for note in measured.notes)


def test_one_rank_can_be_slower(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    batch = collate(dataset.read(np.arange(4), CONFIG.max_uih), 1)
    assert CONFIG.pace is not None
    slow = replace(CONFIG, pace=replace(CONFIG.pace, slow_rank=1, slowness=1.5))
    alike, other = np.array(pace_of(slow, 0)(batch)), np.array(pace_of(slow, 1)(batch))
    assert alike == pytest.approx(np.array(pace_of(CONFIG, 1)(batch)))
    assert other == pytest.approx(1.5 * alike)
    assert "on rank 1 1.5 times as long" in note(slow) and "on rank" not in note(CONFIG)
    with pytest.raises(InputError, match=r"pace\.slow_rank: must be below gpus"):
        replace(CONFIG, pace=replace(CONFIG.pace, slow_rank=CONFIG.gpus))


def test_a_pace_needs_a_device_that_has_a_profile() -> None:
    with pytest.raises(InputError, match="workstation_cpu has no calibrated profile"):
        pace_of(replace(CONFIG, pace=replace(CONFIG.pace, cluster="workstation_cpu")), 0)
    with pytest.raises(InputError, match="pace: is missing"):
        pace_of(replace(CONFIG, mode="measured", pace=None), 0)


def test_a_sleep_is_accurate_and_leaves_the_core() -> None:
    wait = 20_000_000
    late, began_cpu, began = [], time.thread_time_ns(), time.perf_counter_ns()
    for _ in range(25):
        deadline = time.perf_counter_ns() + wait
        assert sleep_until(deadline) == 0
        late.append(time.perf_counter_ns() - deadline)
    assert min(late) >= 0
    assert median(late) < 200_000
    assert time.thread_time_ns() - began_cpu < 0.1 * (time.perf_counter_ns() - began)
    assert sleep_until(deadline) > 0
