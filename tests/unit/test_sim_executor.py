"""Without this a simulated run could use other batches or another partition than a measured one, or start on input that
cannot give a result. Not covered: the real reader (a stand-in delivers lengths and ids) and the size of any number."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from sim_data import StandIn, skewed

from repro.balance.partition import fbs
from repro.config import Arm, ModelConfig, RunConfig
from repro.errors import InputError
from repro.execution.base import RunResult, summarize
from repro.execution.simulated.assumptions import ASSUMPTIONS
from repro.execution.simulated.executor import simulate
from repro.pipeline.step_plan import step_plan

TORCHREC = Arm(name="torchrec")
BALANCE = Arm(name="balance", partition="fbs")
PRIORITY = Arm(name="balance+priority", partition="fbs", exchange="prioritized")
STALE = Arm(name="stale", partition="fbs", exchange="stale")
FREESCALE = Arm(name="freescale", partition="fbs", exchange="prioritized", transport="host_ring")


BASE = RunConfig(
    experiment="e", figure="", mode="simulated", arm=TORCHREC, dataset="stand-in", cluster="h100_paper", gpus=8,
    batch=16, max_uih=4000, steps=4, model=ModelConfig(name="m", layers=2, dim=512, heads=4),
)  # fmt: skip


def run(**changes: object) -> RunResult:
    return simulate(dataclasses.replace(BASE, **changes), skewed(8 * 16 * 4), run_id="r")


def test_one_span_for_every_step_rank_and_op_of_the_plan():
    for arm in (TORCHREC, BALANCE, PRIORITY, STALE, FREESCALE):
        spans = run(arm=arm).timeline.spans
        expected = {(t, r, p.op.label) for t in range(4) for r in range(8) for p in step_plan(arm)}
        assert len(spans) == len(expected)
        assert {(s.step, s.rank, s.op) for s in spans} == expected


def test_request_i_is_read_by_rank_i_mod_world_and_trained_where_the_partition_says():
    """An event carries two ids, a candidate one. Bytes show who holds what, before and after balancing."""
    data = skewed(8 * 16 * 4)
    uih, counts = np.minimum(data.lengths[:128], 4000), data.counts[:128]
    reader = np.arange(128) % 8
    for arm, trainer in ((TORCHREC, reader), (BALANCE, fbs(uih, 8))):
        sent = {(s.op, s.rank): s.bytes for s in run(arm=arm).timeline.spans if s.step == 0}
        ids = np.bincount(trainer, weights=2 * uih + counts)
        assert [sent["id_all_to_all", rank] for rank in range(8)] == (7 * ids).tolist()  # one id in eight stays
    words = 4 + 4 * uih + 2 * counts
    moved = np.bincount(reader, weights=4 * words * (reader != trainer))
    assert [sent["samples_all_to_all", rank] for rank in range(8)] == moved.tolist()


def test_facts_are_those_of_the_global_batches_and_equal_in_all_arms():
    lengths = skewed(8 * 16 * 4)
    facts = run().facts
    assert facts == run(arm=BALANCE).facts
    first, capped = facts[0], np.minimum(lengths.lengths[:128], 4000)
    assert (first.step, first.requests, first.labels, first.uih_tokens) == (
        0, 128, lengths.counts[:128].sum(), capped.sum(),
    )  # fmt: skip
    assert first.sparsity_pct == pytest.approx(100 * (1 - capped.mean() / capped.max()))
    assert first.loss_sum is None


def test_the_same_config_gives_the_same_timeline():
    assert run(arm=BALANCE).timeline.spans == run(arm=BALANCE).timeline.spans


def test_balancing_cuts_the_straggler():
    before, _ = summarize(BASE, run())
    after, _ = summarize(dataclasses.replace(BASE, arm=BALANCE), run(arm=BALANCE))
    assert before["straggler_pct"].value > 3 * after["straggler_pct"].value
    assert before["imbalance"].value > after["imbalance"].value


def test_equal_lengths_leave_no_straggler():
    data = StandIn(np.full(8 * 16 * 4, 1000), np.full(8 * 16 * 4, 4))
    metrics, _ = summarize(BASE, simulate(BASE, data, run_id="r"))
    assert metrics["straggler_pct"].value == 0
    assert metrics["imbalance"].value == 1
    assert metrics["sparsity_pct"].value == 0


def test_the_result_says_what_it_stands_on():
    result = run()
    assert result.hardware == {"cluster": "h100_paper", "gpu": "H100 SXM 80 GB", "gpus": "8"}
    assert result.notes == tuple(str(assumption) for assumption in ASSUMPTIONS)
    assert (result.timeline.run, result.timeline.mode) == ("r", "simulated")
    assert {s.transport for s in result.timeline.spans if s.lane == "comm"} == {"simulated-nccl"}


def test_the_ring_carries_what_only_moves_bytes_and_nccl_what_adds():
    spans = run(arm=FREESCALE).timeline.spans
    over = {(s.op, s.transport) for s in spans if s.category == "communication"}
    assert {op for op, transport in over if transport == "simulated-nccl"} == {"dense_all_reduce"}
    assert {transport for op, transport in over if op != "dense_all_reduce"} == {"simulated-host_ring"}
    assert {s.transport for s in spans if s.category != "communication"} == {""}


def test_the_ring_gives_compute_back_what_contention_took_and_moves_the_same_bytes():
    found = {}
    for arm in (PRIORITY, FREESCALE):
        config = dataclasses.replace(BASE, arm=arm, max_uih=100_000, gpus=16)
        result = simulate(config, skewed(16 * 16 * 4), run_id="r")
        moved = sum(s.bytes for s in result.timeline.spans if s.op != "dense_all_reduce")
        alone = sum(s.reference_ns for s in result.timeline.spans)
        found[arm.name] = (summarize(config, result)[0]["contention_pct"].value, moved, alone)
    assert found["balance+priority"][1:] == found["freescale"][1:]
    assert found["balance+priority"][0] > 5 * found["freescale"][0] > 0


def test_progress_counts_steps():
    done: list[int] = []
    simulate(BASE, skewed(8 * 16 * 4), run_id="r", progress=done.append)
    assert done == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "measured"}, "mode: .*'measured'"),
        ({"steps": 5}, r"steps: 5, but data set stand-in holds 4 global batches of 128 .*; lower steps"),
        ({"gpus": 512}, "gpus: 512, but cluster h100_paper has 256"),
        ({"cluster": "workstation_cpu"}, "no calibrated profile"),
        ({"cluster": "tpu"}, "cluster: 'tpu' is not one of"),
        ({"model": ModelConfig(name="m", layers=1, dim=2048, heads=2)}, "model.heads"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        run(**changes)


def test_simulating_loads_no_torch():
    """A simulation must run where torch, its distributed package or TorchRec are broken or absent."""
    script = "import sys; import repro.execution.simulated.executor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
