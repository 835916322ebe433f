"""Without this the simulated gain of prioritized updates could come from bytes that nobody charged, from deduplication,
or from exclusive traffic that is waited for but booked as hidden. Not covered: row counts (test_sim_rows), and whether
real ranks behave so (tests/distributed)."""

from dataclasses import replace

import numpy as np
import pytest
from sim_data import StandIn, skewed

from repro.config import Arm, ModelConfig, RunConfig
from repro.execution.base import RunResult, summarize
from repro.execution.simulated import communication, compute
from repro.execution.simulated.clusters import H100_PAPER
from repro.execution.simulated.executor import simulate
from repro.execution.simulated.prioritized_costs import StepRows, beside, prioritized_costs
from repro.execution.simulated.rows import RowTraffic
from repro.execution.simulated.whatif import METRICS, SHARES_PCT, metric_at
from repro.pipeline.ops import Op
from repro.timeline.ledger import build_ledger
from repro.timeline.perfetto import trace

PRIORITY = Arm(name="balance+priority", partition="fbs", exchange="prioritized")
STALE = Arm(name="stale", partition="fbs", exchange="stale")
CONFIG = RunConfig(
    experiment="e", figure="", mode="simulated", arm=PRIORITY, dataset="stand-in", cluster="h100_paper", gpus=2,
    batch=64, max_uih=4000, steps=6, warmup_steps=1, model=ModelConfig(name="m", layers=2, dim=512, heads=4),
)  # fmt: skip
ROW = 512 * 4


def traffic(asked: float, late: float, urgent: float) -> RowTraffic:
    """Rank 0 asks for `asked` rows and rank 1 for a tenth; rank 1 owns most of them."""
    askers, owners, distinct = np.array([1.0, 0.1]), np.array([0.3, 0.8]), np.array([0.2, 0.6])
    return RowTraffic(
        asked=asked * askers, asked_late=late * askers, asked_urgent=urgent * askers,
        served=asked * owners, served_late=late * owners, served_urgent=urgent * owners,
        owned=asked * distinct, owned_urgent=urgent * distinct,
    )  # fmt: skip


NOW, FOLLOWING, ANNOUNCED = traffic(1000, 100, 300), traffic(2000, 500, 700), traffic(4000, 900, 0)
ROWS = StepRows(now=NOW, following=FOLLOWING, announced=ANNOUNCED, lookups=np.array([5000.0, 500.0]))


def run(arm: Arm, data: StandIn | None = None, **changes: object) -> tuple[RunConfig, RunResult]:
    config = replace(CONFIG, arm=arm, **changes)
    return config, simulate(config, data or skewed(config.global_batch * (config.steps + 2), seed=5), run_id="r")


def test_bytes_are_of_the_batch_that_each_op_serves():
    """Ids of t+2, masks of t+1 and t+2, embeddings of t+1, gradients of t; half of everything stays on two ranks."""
    sent = prioritized_costs(CONFIG, H100_PAPER, ROWS).sent
    expected = {
        Op.ID_SPLITS_ALL_TO_ALL: [16, 16],
        Op.ID_ALL_TO_ALL: [8 * 4000, 8 * 400],
        Op.COLLISION_MASK_ALL_TO_ALL: [0.3 * 6000, 0.8 * 6000],
        Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL: [ROW * 0.3 * 1500, ROW * 0.8 * 1500],
        Op.COLLISION_EMBEDDING_ALL_TO_ALL: [ROW * 0.3 * 500, ROW * 0.8 * 500],
        Op.COLLISION_GRADIENT_ALL_TO_ALL: [ROW * 300, ROW * 30],
        Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL: [ROW * 700, ROW * 70],
    }
    assert sent.keys() == expected.keys()
    for op, bytes_R in expected.items():
        assert sent[op] == pytest.approx(np.array(bytes_R) / 2), op


def test_the_busiest_sender_or_receiver_sets_the_pace():
    """Of the exclusive embeddings rank 0 receives 1500 rows, more than any owner sends."""
    seconds = prioritized_costs(CONFIG, H100_PAPER, ROWS).seconds
    expected = communication.all_to_all(H100_PAPER, 2, nic_bytes=0, nvlink_bytes=ROW * 1500 / 2)
    assert float(seconds[Op.EXCLUSIVE_EMBEDDING_ALL_TO_ALL]) == pytest.approx(expected)


def test_local_work():
    cost = prioritized_costs(CONFIG, H100_PAPER, ROWS)
    model = CONFIG.model
    served = np.array([0.3, 0.8])
    assert cost.seconds[Op.EXCLUSIVE_LOOKUP] == pytest.approx(compute.lookup(model, H100_PAPER, 1500 * served))
    assert cost.seconds[Op.COLLISION_LOOKUP] == pytest.approx(compute.lookup(model, H100_PAPER, 500 * served))
    distinct = np.array([0.2, 0.6])
    for op, rows in ((Op.COLLISION_UPDATE, 300), (Op.EXCLUSIVE_UPDATE, 700)):
        update = compute.row_update(model, H100_PAPER, rows * served, rows * distinct, "rowwise_adagrad")
        assert cost.seconds[op] == pytest.approx(update)
    merged = 2 * 5e-6 + 2 * np.array([6000, 600]) * ROW / 2.5e12
    assert cost.seconds[Op.LOOKUP] == pytest.approx(merged)
    assert cost.sum_duplicates == pytest.approx(np.array([7000, 700]) * ROW / 1.45e12)


def test_two_collectives_side_by_side_share_the_network():
    """Latency 1, transfers of 4 and 10: the short one takes 1 + 8, the long one 1 + 14; together 14 of work."""
    assert beside(5, 11, 1) == 9
    assert beside(11, 5, 1) == 15
    assert beside(5, 1, 1) == 5


def test_only_exchanged_rows_that_collide_are_exposed_and_the_cost_is_linear_in_them():
    """Long dense work hides the rest. The slope is that of collision gradients and embeddings."""
    config, result = run(PRIORITY, max_uih=100_000, gpus=16, batch=16)
    metrics, _ = summarize(config, result)
    share = np.array([1, 2, 5, 10, 15])
    waited = np.array(
        [
            metrics[metric_at("exposed_embedding_ms", s)].value - metrics[metric_at("exposed_exclusive_ms", s)].value
            for s in share
        ]
    )
    fit = np.polyfit(share, waited, 1)
    assert fit[0] > 0
    assert 1 - ((waited - np.polyval(fit, share)) ** 2).sum() / ((waited - waited.mean()) ** 2).sum() > 0.999
    everything = metrics[metric_at("exposed_embedding_ms", 100)].value
    assert np.polyval(fit, 0) < waited[0] < everything


def test_what_if_metrics_are_those_of_runs_with_such_rows():
    """Where all rows collide by themselves, overriding the share by 100 % changes nothing."""
    _, result = run(PRIORITY)
    assert set(result.metrics) == {metric_at(name, share) for name in METRICS for share in SHARES_PCT}
    assert any("override" in note for note in result.notes)
    always = np.zeros(5000, dtype=np.int32)  # every rank looks up the same few rows: all collide, after the first batch
    data = skewed(128 * 8, seed=5)
    data._events["item"] = always[data._events["item"] % 10]
    data._candidates = always[data._candidates % 10]
    data.manifest.fingerprint = "all collide"
    config, result = run(PRIORITY, data, warmup_steps=2)
    metrics, _ = summarize(config, result)
    assert metrics["collision_pct"].value == 100
    assert metrics["exchange_collision_pct"].value == 100
    for name in METRICS:
        assert metrics[metric_at(name, 100)].value == pytest.approx(metrics[name].value, rel=1e-6)


def test_deduplication_is_reported_and_not_part_of_priority():
    config, result = run(PRIORITY)
    metrics, _ = summarize(config, result)
    facts = result.facts[1:]
    saved = 100 * (1 - sum(f.exchanged_rows for f in facts) / sum(f.lookups for f in facts))
    assert metrics["dedup_saving_pct"].value == pytest.approx(saved)
    blocking, _ = summarize(*run(Arm(name="balance", partition="fbs")))
    assert "dedup_saving_pct" not in blocking
    assert blocking["collision_pct"].value == metrics["collision_pct"].value


def test_stale_prefetches_everything():
    _, result = run(STALE)
    sent = {op: sum(s.bytes for s in result.timeline.spans if s.op == op.label) for op in Op}
    assert sent[Op.COLLISION_GRADIENT_ALL_TO_ALL] == sent[Op.COLLISION_EMBEDDING_ALL_TO_ALL] == 0
    assert sent[Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL] > 0
    assert not result.metrics


def test_exclusive_rows_cross_into_the_next_window_and_parts_still_sum():
    """Exclusive gradients of t are still in flight when t+1 begins; the ledger, which asserts the sum itself, counts
    them in the window where they are."""
    _, result = run(STALE, skewed(6 * 1024, items=200_000), gpus=16, steps=4)
    ledger = build_ledger(result.timeline)
    ends = ledger.window_ns.cumsum()
    crossing = [
        s for s in result.timeline.spans
        if s.op == Op.EXCLUSIVE_GRADIENT_ALL_TO_ALL.label and s.start_ns + s.duration_ns > ends[s.step]
    ]  # fmt: skip
    assert crossing
    assert (sum(ledger.parts_ns.values()) == ledger.window_ns[:, None]).all()


def test_background_lane_is_a_track_of_its_own():
    _, result = run(PRIORITY, gpus=2)
    events = trace(result.timeline, ranks=[0])["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "comm", "background", "host"} <= names
    track = {e["name"]: e["tid"] for e in events if e["ph"] == "X"}
    assert track["exclusive_lookup"] == track["exclusive_update"]
    assert track["exclusive_lookup"] != track["lookup"]
