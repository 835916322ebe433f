"""Without this, the shaped network could have another rate than its name says, in one direction or both; spans could
claim bytes that never travelled; and a killed run could leave namespaces and interfaces behind.

Not covered: machines other than Linux; what a network does that a token bucket does not (congestion in a fabric, loss);
rates above 200 Mbit/s, where the cores, not the bucket, set the pace.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.distributed as dist

from repro.comm.groups import Groups
from repro.comm.traced import start_all_to_all
from repro.device import Device
from repro.device.paced import sleep_until
from repro.launch.local import Died, run_processes
from repro.launch.network import PREFIX, names_here, remove_stale
from repro.pipeline.ops import Op
from repro.timeline.recorder import Recorder
from tests.distributed.namespaces import ROOT, run_shaped, shaped, shapes, starts

pytestmark = [pytest.mark.distributed, shapes]

MIB = 2**20
REPEATS = 5


def _seconds(groups: Groups, sends: tuple[int, ...], size: int, recorder: Recorder) -> float:
    """Duration of an AllToAll of two ranks in which each of `sends` sends `size` bytes to the other."""
    peer = 1 - groups.rank
    out = [size if rank == peer and groups.rank in sends else 0 for rank in range(2)]
    into = [size if rank == peer and peer in sends else 0 for rank in range(2)]
    sent, received = torch.zeros(sum(out), dtype=torch.uint8), torch.empty(sum(into), dtype=torch.uint8)
    dist.barrier(group=groups.balance)
    began = time.perf_counter()
    start_all_to_all(received, sent, into, out, Op.EMBEDDING_ALL_TO_ALL, groups.main, recorder).wait()
    return time.perf_counter() - began


def _timed(groups: Groups, device: Device, size: int) -> dict[str, Any]:
    """Median seconds of each direction and both, and bytes as spans and the interface count them."""
    recorder = Recorder(device, rank=groups.rank, transport="gloo")
    _seconds(groups, (0, 1), 1000, recorder)
    counter = Path("/sys/class/net/eth0/statistics/tx_bytes")
    before, spans_before = int(counter.read_text()), sum(span.bytes for span in recorder.spans())
    found: dict[str, Any] = {}
    for name, sends in {"0 to 1": (0,), "1 to 0": (1,), "both": (0, 1)}.items():
        found[name] = median(_seconds(groups, sends, size, recorder) for _ in range(REPEATS))
    time.sleep(0.5)  # The last bytes are the kernel's, still, when the sender is through.
    found["wire"] = int(counter.read_text()) - before
    found["spans"] = sum(span.bytes for span in recorder.spans()) - spans_before
    return found


def test_an_all_to_all_takes_what_the_rate_says_and_sends_what_its_span_says() -> None:
    with shaped(100, 2) as network:
        ranks = run_shaped(network, _timed, MIB)
    nominal = MIB * 8 / 100e6
    for direction in ("0 to 1", "1 to 0"):
        # The receiver has everything; the sender is through when the kernel has taken the last of it.
        seconds = max(rank[direction] for rank in ranks)
        assert seconds == pytest.approx(nominal, rel=0.15), (direction, seconds, nominal)
    # gloo is somewhere between full and half duplex.
    both = max(rank["both"] for rank in ranks)
    assert 0.85 * nominal < both < 2.3 * nominal, (both, nominal)
    for rank in ranks:
        assert rank["spans"] == 2 * REPEATS * MIB
        assert rank["wire"] == pytest.approx(rank["spans"], rel=0.05)


def _overlapped(groups: Groups, _device: Device, size: int, compute: float) -> tuple[float, float]:
    """Seconds of an AllToAll alone, and of one beside paced compute; medians."""

    def once(pause: float) -> float:
        sent, received = torch.zeros(2 * size, dtype=torch.uint8), torch.empty(2 * size, dtype=torch.uint8)
        dist.barrier(group=groups.balance)
        began = time.perf_counter_ns()
        work = dist.all_to_all_single(received, sent, group=groups.main, async_op=True)
        sleep_until(began + round(1e9 * pause))
        work.wait()
        return (time.perf_counter_ns() - began) / 1e9

    return median(once(0.0) for _ in range(REPEATS)), median(once(compute) for _ in range(REPEATS))


def test_a_collective_hides_behind_longer_paced_compute() -> None:
    compute = 0.25
    with shaped(50, 2) as network:
        ranks = run_shaped(network, _overlapped, MIB // 2, compute)
    for alone, beside in ranks:
        assert 0.05 < alone < compute
        hidden = (alone + compute - beside) / alone
        assert hidden >= 0.8, (alone, beside, hidden)


def _round_trip(groups: Groups, _device: Device) -> float:
    """Median seconds for a byte there and back."""
    byte = torch.zeros(1, dtype=torch.uint8)

    def once() -> float:
        began = time.perf_counter()
        for sender in (0, 1):
            (dist.send if groups.rank == sender else dist.recv)(byte, 1 - groups.rank, group=groups.main)
        return time.perf_counter() - began

    return median(once() for _ in range(20))


def test_a_delay_delays_and_leaves_the_rate(tmp_path: Path) -> None:
    links = _links()
    with shaped(100, 2, delay_ms=5) as network:
        relays = _children("repro.launch.relay")
        assert len(relays) == 1
        seconds = run_shaped(network, _round_trip)[0]
        ranks = run_shaped(network, _timed, 2 * MIB)
    assert 0.010 <= seconds < 0.015, seconds
    nominal = 2 * MIB * 8 / 100e6
    for direction in ("0 to 1", "1 to 0"):
        assert max(rank[direction] for rank in ranks) == pytest.approx(nominal, rel=0.25), direction
    assert not _ours(os.getpid()) and _links() == links and not _children("repro.launch.relay")


def _children(module: str) -> list[int]:
    """Of this process, those that run that module."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in listed if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _four(groups: Groups, _device: Device) -> list[float]:
    total = torch.full((3,), float(groups.rank))
    dist.all_reduce(total, group=groups.main)
    return total.tolist()


def test_four_ranks_reach_each_other() -> None:
    with shaped(200, 4) as network:
        assert run_shaped(network, _four) == [[6.0, 6.0, 6.0]] * 4


def _links() -> list[str]:
    listed = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True).stdout
    return sorted(link["ifname"] for link in json.loads(listed))


def _ours(pid: int) -> list[str]:
    return [name for name in names_here() if name.startswith(f"{PREFIX}-{pid}-")]


def _killed(groups: Groups, _device: Device, folder: Path) -> None:
    """Both ranks are up; the second dies as of an out-of-memory killer, the first waits for it."""
    dist.barrier(group=groups.main)
    (folder / f"pid-{groups.rank}").write_text(str(os.getpid()))
    if groups.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier(group=groups.main)


def test_a_killed_rank_ends_the_others_and_leaves_nothing(tmp_path: Path) -> None:
    links, names = _links(), set(names_here())
    with shaped(100, 2) as network, (tmp_path / "log").open("w") as log:
        assert set(network.namespaces) < set(names_here()) - names
        assert _links() == links
        died = run_processes(starts(network, tmp_path, _killed, tmp_path), log, lambda: None)
    assert died == Died(1, -signal.SIGKILL)
    assert not _ours(os.getpid())
    assert _links() == links
    assert not _running(int((tmp_path / "pid-0").read_text()))


def _waiting(groups: Groups, _device: Device, folder: Path) -> None:
    dist.barrier(group=groups.main)
    (folder / f"pid-{groups.rank}").write_text(str(os.getpid()))
    time.sleep(120)


LAUNCHER = """
import sys
from pathlib import Path
from tests.distributed.namespaces import shaped, starts
from tests.distributed.test_shaped_network import _waiting
from repro.launch.local import run_processes
folder = Path(sys.argv[1])
with shaped(100, 2) as network, (folder / "log").open("w") as log:
    run_processes(starts(network, folder, _waiting, folder), log, lambda: None)
"""


def _launcher(folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A launcher whose ranks are up, and their process ids."""
    started = subprocess.Popen([sys.executable, "-c", LAUNCHER, str(folder)], cwd=ROOT, stderr=subprocess.DEVNULL)
    files = [folder / "pid-0", folder / "pid-1"]
    give_up = time.monotonic() + 120
    while not all(file.exists() and file.read_text() for file in files):
        assert started.poll() is None and time.monotonic() < give_up, (folder / "log").read_text()
        time.sleep(0.1)
    return started, [int(file.read_text()) for file in files]


def _running(pid: int) -> bool:
    """Whether that process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_interrupted_launcher_leaves_nothing(tmp_path: Path) -> None:
    links = _links()
    launcher, ranks = _launcher(tmp_path)
    assert len(_ours(launcher.pid)) == 3
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(30) != 0
    assert not _ours(launcher.pid)
    assert _links() == links
    assert not any(_running(rank) for rank in ranks)


def test_the_next_start_removes_what_a_killed_launcher_left_and_nothing_else(tmp_path: Path) -> None:
    launcher, ranks = _launcher(tmp_path)
    launcher.kill()
    launcher.wait()
    for rank in ranks:
        os.kill(rank, signal.SIGKILL)
    others = [name for name in names_here() if name not in _ours(launcher.pid)]
    assert len(_ours(launcher.pid)) == 3
    with shaped(100, 2) as network:
        assert not _ours(launcher.pid)
        remove_stale()
        assert {*others, *network.namespaces} <= set(names_here())
