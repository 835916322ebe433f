"""Without this, a transport could deliver other bytes than gloo's own collectives do, for some world, dtype, split or
size, or when several collectives are in flight; or leak memory, threads or file descriptors over a long run.

Host tensors, on which `host_ring` runs both ways: as on a CPU (nothing is staged) and as for a GPU (every chunk goes
through the pool; the copies themselves are the host's). Not covered: copies and streams of a GPU, bandwidth
(benchmarks/transports.py), failures (test_transport_failure).
"""

from __future__ import annotations

import gc
import threading
from datetime import timedelta
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from repro.comm.groups import Groups
from repro.comm.traced import start_all_gather, start_all_to_all, traced_collectives
from repro.comm.transport import ProcessGroupTransport, Transport
from repro.comm.transport.host_ring import HostRing
from repro.comm.transport.padded import PaddedExchange
from repro.device import Device
from repro.device.copies import StagedCopies
from repro.errors import InputError, RunError
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8)
CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=60)
SMALL_CHUNK = 96
"""Bytes; so that a few hundred values are many chunks."""


def _transports(groups: Groups) -> list[Transport]:
    return [
        ProcessGroupTransport(groups.main),
        PaddedExchange(dist.new_group(backend="gloo"), dist.new_group(backend="gloo")),
        HostRing.connect(CPU, chunk_bytes=SMALL_CHUNK, depth=2, timeout=TIMEOUT),
        HostRing.connect(CPU, chunk_bytes=SMALL_CHUNK, depth=3, timeout=TIMEOUT, copies=StagedCopies()),
    ]


def _values(count: int, width: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bit pattern, NaN included, since bytes are what is compared."""
    size = count * width * dtype.itemsize
    bytes_B = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bytes_B.view(dtype).view(count, width) if size else torch.empty((count, width), dtype=dtype)


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.numel() == right.numel() == 0 or torch.equal(left.view(torch.uint8), right.view(torch.uint8))


SHARE = st.one_of(st.just(0), st.integers(0, 40), st.integers(100, 300))
"""Rows from one rank to another: often none."""


def _random_collectives(groups: Groups, device: Device, examples: int) -> int:
    """Every rank draws the same examples, so they agree on what comes next."""
    transports = _transports(groups)
    rank, world = groups.rank, groups.world
    done = 0

    one = st.tuples(
        st.sampled_from(DTYPES),
        st.integers(1, 3),
        st.lists(st.lists(SHARE, min_size=world, max_size=world), min_size=world, max_size=world),
        st.booleans(),
    )

    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(one, min_size=1, max_size=6))
    def check(collectives: list[Any]) -> None:
        nonlocal done
        in_flight = []
        for number, (dtype, width, rows, gather) in enumerate(collectives):
            count = rows[0][0] if gather else sum(rows[rank])
            input = _values(count, width, dtype, seed=100 * rank + number)
            out_splits = [rows[source][rank] for source in range(world)]
            received = world * count if gather else sum(out_splits)
            expected = torch.empty((received, width), dtype=dtype)
            if gather:
                dist.all_gather_single(expected, input)
            else:
                dist.all_to_all_single(expected, input, out_splits, rows[rank])
            for transport in transports:
                output = torch.zeros_like(expected)
                if gather:
                    handle = transport.all_gather(output, input)
                else:
                    handle = transport.all_to_all_single(output, input, out_splits, rows[rank])
                in_flight.append((transport.name, handle, output, expected))
        for name, handle, output, expected in reversed(in_flight):
            handle.wait()
            assert handle.is_completed()
            assert _same_bytes(output, expected), name
        done += len(in_flight)

    check()
    assert len({(transport.sent_bytes, transport.received_bytes) for transport in transports}) == 1
    _close(transports)
    return done


def _close(transports: list[Transport]) -> None:
    dist.barrier()
    for transport in transports:
        if isinstance(transport, HostRing):
            for pool in (transport.send_pool, transport.receive_pool):
                assert pool.chunks_in_use == 0
        transport.close()


@pytest.mark.parametrize(("world", "examples"), [(1, 10), (2, 50), (3, 30), (4, 15), (5, 8), (6, 5), (7, 4), (8, 4)])
def test_same_bytes_as_gloo_with_many_in_flight_on_several_transports(world: int, examples: int) -> None:
    assert all(run_ranks(_random_collectives, examples, world=world))


def _sizes(groups: Groups, device: Device) -> None:
    """0 B to 64 MB, equal shares and everything to one rank."""
    transports = [
        HostRing.connect(CPU, timeout=TIMEOUT),
        HostRing.connect(CPU, chunk_bytes=1 << 20, depth=3, timeout=TIMEOUT, copies=StagedCopies()),
    ]
    rank, world = groups.rank, groups.world
    for megabytes in (0, 1, 64):
        values = megabytes << 18
        for to_one in (False, True):
            sent = [values if peer == 0 else 0 for peer in range(world)] if to_one else [values // world] * world
            received = [values if rank == 0 else 0] * world if to_one else sent
            input = torch.arange(sum(sent), dtype=torch.int32) + rank
            expected = torch.empty(sum(received), dtype=torch.int32)
            dist.all_to_all_single(expected, input, received, sent)
            for transport in transports:
                output = torch.zeros_like(expected)
                transport.all_to_all_single(output, input, received, sent).wait()
                assert torch.equal(output, expected)
        block = torch.arange(values // world, dtype=torch.int32) * (rank + 1)
        expected = torch.empty(world * block.numel(), dtype=torch.int32)
        dist.all_gather_single(expected, block)
        for transport in transports:
            output = torch.zeros_like(expected)
            transport.all_gather(output, block).wait()
            assert torch.equal(output, expected)
    staged = transports[1]
    assert staged.send_pool.cap_bytes + staged.receive_pool.cap_bytes == (3 + 2 + 2 * 3 + 2) << 20
    _close(list(transports))


def test_from_nothing_to_64_megabytes() -> None:
    run_ranks(_sizes, world=2)


MANY = 10_000
WARM_UP = 2_000


def _leak(groups: Groups, device: Device) -> tuple[int, int, int]:
    """Growth of resident memory (bytes), file descriptors and threads over many small collectives."""
    transport = HostRing.connect(CPU, timeout=TIMEOUT, copies=StagedCopies())
    process = psutil.Process()
    input = torch.arange(8 * groups.world)
    output, gathered = torch.empty_like(input), torch.empty(8 * groups.world, dtype=torch.int64)

    def some(count: int) -> None:
        handles: list[Any] = []
        for number in range(count):
            if number % 2:
                handles.append(transport.all_to_all_single(output, input))
            else:
                handles.append(transport.all_gather(gathered, input[:8]))
            if len(handles) == 50:
                for handle in handles:
                    handle.wait()
                handles.clear()
        gc.collect()

    def state() -> tuple[int, int, int]:
        return process.memory_info().rss, process.num_fds(), threading.active_count()

    some(WARM_UP)
    before = state()
    some(MANY)
    after = state()
    _close([transport])
    memory, descriptors, threads = (late - early for early, late in zip(before, after, strict=True))
    return memory, descriptors, threads


def test_ten_thousand_collectives_leave_memory_and_descriptors_flat() -> None:
    for memory, descriptors, threads in run_ranks(_leak, world=2):
        assert memory < 2 << 20, f"{memory} bytes more"
        assert descriptors == 0 and threads == 0


def _opened_and_closed(groups: Groups, device: Device) -> tuple[int, int]:
    process = psutil.Process()
    counts = []
    for _ in range(4):
        transport = HostRing.connect(CPU, timeout=TIMEOUT)
        transport.all_gather(torch.empty(groups.world), torch.ones(1)).wait()
        _close([transport])
        gc.collect()
        counts.append(process.num_fds())
    return counts[1], counts[-1]


def test_a_closed_transport_leaves_no_descriptors() -> None:
    for early, late in run_ranks(_opened_and_closed, world=2):
        assert late <= early


def _without_waiting(groups: Groups, device: Device) -> None:
    transport = HostRing.connect(CPU, timeout=TIMEOUT)
    done = threading.Event()
    handle = transport.all_gather(torch.empty(groups.world), torch.ones(1))
    handle.get_future().add_done_callback(lambda _: done.set())
    assert done.wait(30), "nobody waits, and it ends all the same"
    if groups.rank == 0:
        late = transport.all_gather(torch.empty(groups.world), torch.ones(1))
        with pytest.raises(RuntimeError, match=r"not done within 0\.05 s"):
            late.wait(timedelta(seconds=0.05))
        assert not late.is_completed()
        dist.barrier()
        assert late.wait()
    else:
        dist.barrier()
        transport.all_gather(torch.empty(groups.world), torch.ones(1)).wait()
    _close([transport])


def test_it_progresses_with_nobody_waiting() -> None:
    run_ranks(_without_waiting, world=2)


def _misuse(groups: Groups, device: Device) -> None:
    for transport in _transports(groups):
        for reduction in ("all_reduce", "reduce_scatter"):
            with pytest.raises(RunError, match=f"{transport.name} moves bytes and does not add: {reduction}"):
                getattr(transport, reduction)(torch.ones(2))
        two = torch.ones(2)
        with pytest.raises(ValueError, match="splits"):
            transport.all_to_all_single(two, two, [3, 0], [1, 1])
        with pytest.raises(ValueError, match="cannot be split equally"):
            transport.all_to_all_single(torch.ones(3), torch.ones(3))
        with pytest.raises(ValueError, match="they must agree"):
            transport.all_to_all_single(two, two.to(torch.int32))
        with pytest.raises(ValueError, match="contiguous"):
            transport.all_to_all_single(torch.ones(2, 2).T, torch.ones(2, 2))
        with pytest.raises(ValueError, match="all_gather of 2 values to 2 ranks"):
            transport.all_gather(two, two)
    with pytest.raises(InputError, match="depth 0"):
        HostRing.connect(CPU, depth=0)


def test_misuse_is_told_at_once_on_every_rank() -> None:
    run_ranks(_misuse, world=2)


def _spans(groups: Groups, device: Device) -> list[tuple[str, str, int, int]]:
    recorder = Recorder(device, rank=groups.rank, transport=device.backend)
    ring = HostRing.connect(CPU, timeout=TIMEOUT)
    two = torch.ones(2, 4)
    with traced_collectives(recorder):
        for way in (groups.balance, ring):
            start_all_to_all(torch.empty(2, 4), two, [1, 1], [1, 1], Op.SAMPLES_ALL_TO_ALL, way, recorder).wait()
            assert start_all_gather(two, Op.LENGTHS_ALL_GATHER, way, recorder).wait().shape == (2, 2, 4)
    _close([ring])
    return [(span.op, span.transport, span.bytes, span.duration_ns) for span in recorder.spans()]


def test_spans_name_the_transport() -> None:
    for spans in run_ranks(_spans, world=2):
        assert [span[:3] for span in spans] == [
            ("samples_all_to_all", "gloo", 16),
            ("lengths_all_gather", "gloo", 32),
            ("samples_all_to_all", "host_ring", 16),
            ("lengths_all_gather", "host_ring", 32),
        ]
        assert all(duration > 0 for *_, duration in spans)


def _waste(groups: Groups, device: Device) -> tuple[int, int]:
    padded = PaddedExchange(groups.main, groups.balance)
    sent = [3, 1] if groups.rank == 0 else [0, 2]
    received = [3, 0] if groups.rank == 0 else [1, 2]
    padded.all_to_all_single(torch.empty(sum(received)), torch.ones(sum(sent)), received, sent).wait()
    padded.close()
    return padded.sent_bytes, padded.wasted_bytes


def test_padding_is_reported_beside_the_payload() -> None:
    assert run_ranks(_waste, world=2) == [(4, 8), (0, 12)]


def test_nothing_is_staged_without_need() -> None:
    """On host tensors the pool is empty, not merely unused."""
    for caps in run_ranks(_pool_bytes, world=1):
        assert caps == 0


def _pool_bytes(groups: Groups, device: Device) -> int:
    ring = HostRing.connect(CPU, timeout=TIMEOUT)
    size = ring.send_pool.cap_bytes + ring.receive_pool.cap_bytes
    ring.close()
    return size
