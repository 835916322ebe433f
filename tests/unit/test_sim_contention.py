"""Without this an SM could be charged twice, a byte not at all, or the ring's host memory forgotten, and the gain of
SM-free communication would be an artefact. Each function is held against its formula worked out by hand; how loads act
on compute is tested with the engine (test_sim_engine). Not covered: whether the constants describe any real GPU."""

from dataclasses import replace

import pytest

from repro.config import Arm
from repro.execution.simulated import communication, host_ring
from repro.execution.simulated.carriers import carrier_of
from repro.execution.simulated.clusters import H100_PAPER
from repro.execution.simulated.contention import Load, load
from repro.pipeline.ops import Op
from repro.pipeline.step_plan import step_plan

FREESCALE = Arm(name="freescale", partition="fbs", exchange="prioritized", transport="host_ring")


def stretch(found: Load) -> float:
    """How much longer compute takes beside it while bytes move."""
    return 1 / ((1 - found.sms) * (1 - found.memory))


def test_the_published_example_of_an_all_to_all():
    """25 GB/s each way between nodes: 16 of 132 SMs, and three passes of 50 GB/s through 3.35 TB/s: 1.19."""
    found = load(Op.EMBEDDING_ALL_TO_ALL, "process_group", H100_PAPER, 64, sent=25e9, seconds=1.0)
    assert found.sms == pytest.approx(16 / 132)
    assert found.memory == pytest.approx(3 * 50 / 3350)
    assert stretch(found) == pytest.approx(1.19, abs=0.005)


def test_the_published_example_of_an_all_gather_inside_a_node():
    """240 GB/s each way over NVLink: 24 SMs, one pass; 1.43, where 1.3 to 1.4 was measured (pytorch#179937)."""
    found = load(Op.LENGTHS_ALL_GATHER, "process_group", H100_PAPER, 8, sent=240e9, seconds=1.0)
    assert found.sms == pytest.approx(24 / 132)
    assert stretch(found) == pytest.approx(1.43, abs=0.005)


def test_the_published_example_of_the_ring():
    found = load(Op.EMBEDDING_ALL_TO_ALL, "host_ring", H100_PAPER, 64, sent=25e9, seconds=1.0)
    assert found.sms == 0
    assert stretch(found) == pytest.approx(1.015, abs=0.0005)


def test_the_all_reduce_holds_16_sms_and_passes_memory_once():
    found = load(Op.DENSE_ALL_REDUCE, "process_group", H100_PAPER, 64, sent=335e9, seconds=2.0)
    assert (found.sms, found.memory) == pytest.approx((16 / 132, 0.1))


def test_one_rank_takes_nothing():
    assert load(Op.ID_ALL_TO_ALL, "process_group", H100_PAPER, 1, sent=0, seconds=5e-6) == Load(sms=0, memory=0)


def test_what_adds_stays_on_the_process_group():
    assert on_nccl(FREESCALE) == {Op.DENSE_ALL_REDUCE}
    assert carrier_of(Arm(name="torchrec"), Op.ID_ALL_TO_ALL) == "process_group"


def test_what_a_step_is_blocked_on_may_stay_there_too():
    hidden = replace(FREESCALE, transport="host_ring_hidden")
    awaited = {Op.COLLISION_GRADIENT_ALL_TO_ALL, Op.COLLISION_EMBEDDING_ALL_TO_ALL}
    assert on_nccl(hidden) == {Op.DENSE_ALL_REDUCE} | awaited
    blocking = {Op.ID_SPLITS_ALL_TO_ALL, Op.ID_ALL_TO_ALL, Op.EMBEDDING_ALL_TO_ALL, Op.GRADIENT_ALL_TO_ALL}
    assert on_nccl(replace(hidden, exchange="blocking")) == {Op.DENSE_ALL_REDUCE} | blocking


def on_nccl(arm: Arm) -> set[Op]:
    moved = {planned.op for planned in step_plan(arm) if planned.op.category == "communication"}
    return {op for op in moved if carrier_of(arm, op) == "process_group"}


def test_host_memory_of_a_full_node_is_the_narrowest_stage():
    """480 GB/s for 8 GPUs x 4 passes: 15 GB/s; a GPU alone is bound by its NIC."""
    assert host_ring.staged_bandwidth(H100_PAPER, 64) == pytest.approx(15e9)
    assert host_ring.staged_bandwidth(H100_PAPER, 4) == pytest.approx(23.5e9)


def test_ring_all_to_all_closed_form():
    """640 MB to 64 peers: 10 MB messages, copied in chunks of 4; 63 of 7 us."""
    large = host_ring.all_to_all(H100_PAPER, 65, sent_bytes=640e6)
    assert large == pytest.approx(4e6 / 52e9 + 4e6 / 55e9 + 64 * 7e-6 + 640e6 / 15e9)
    small = host_ring.all_to_all(H100_PAPER, 65, sent_bytes=6400)
    assert small == pytest.approx(100 / 52e9 + 100 / 55e9 + 64 * 7e-6 + 6400 / 15e9)


def test_ring_all_gather_closed_form():
    found = host_ring.all_gather(H100_PAPER, 64, total_bytes=64e6)
    assert found == pytest.approx(1e6 / 52e9 + 1e6 / 55e9 + 63 * (7e-6 + 1e6 / 15e9))


def test_the_ring_alone_is_slower_than_nccl_at_any_size():
    """As the paper says: it serves the overlapped case."""
    for world in (8, 64, 256):
        for size in (1e3, 1e6, 1e8):
            nic, nvlink = communication.all_to_all_split(H100_PAPER, world)
            nccl, ring = (
                communication.all_to_all(
                    H100_PAPER, world, nic_bytes=nic * size, nvlink_bytes=nvlink * size, carrier=carrier
                )
                for carrier in ("process_group", "host_ring")
            )
            assert ring > nccl, (world, size)


def test_the_example_of_the_docstring():
    nic, nvlink = communication.all_to_all_split(H100_PAPER, 64)
    sent = 100e6
    assert host_ring.all_to_all(H100_PAPER, 64, sent_bytes=sent) * 1e3 == pytest.approx(7.17, abs=0.005)
    nccl = communication.all_to_all(
        H100_PAPER, 64, nic_bytes=sent * nic / (nic + nvlink), nvlink_bytes=sent * nvlink / (nic + nvlink)
    )
    assert nccl * 1e3 == pytest.approx(4.28, abs=0.005)


def test_one_rank_rings_nobody():
    assert host_ring.all_to_all(H100_PAPER, 1, sent_bytes=0) == H100_PAPER.kernel_launch
    assert host_ring.all_gather(H100_PAPER, 1, total_bytes=8) == H100_PAPER.kernel_launch
