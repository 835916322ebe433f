"""A device that takes another one's time: the emulated accelerator.

Work is issued to it and runs on, as on a GPU: the host goes on while the device is busy, and a mark lies where the
device gets to it. What needs a result waits for it asleep, which leaves the cores to gloo and the exchange's threads,
as a GPU leaves them to NCCL.
"""

from __future__ import annotations

import time

from repro.device.cpu import CpuDevice

SPIN_NS = 200_000
"""Left to spin: what a sleeping thread may oversleep by on an idle core."""


class PacedDevice(CpuDevice):
    """A CPU that is busy for as long as it is told."""

    name = "cpu, paced"

    def __init__(self) -> None:
        self._busy_until_ns = 0

    def run(self, duration_ns: int) -> tuple[int, int]:
        """Issue work that takes `duration_ns`; it runs after what was issued before.

        Returns:
            Its start and end, of `time.perf_counter_ns`.
        """
        began_ns = self.mark()
        self._busy_until_ns = began_ns + duration_ns
        return began_ns, self._busy_until_ns

    def mark(self) -> int:
        """When the device has done all it was given, at the earliest now."""
        return max(time.perf_counter_ns(), self._busy_until_ns)

    def synchronize(self) -> None:
        """Sleep until the device has done all it was given."""
        sleep_until(self._busy_until_ns)


def sleep_until(deadline_ns: int) -> int:
    """Return at `deadline_ns` of `time.perf_counter_ns`, or at once when it is past.

    `time.sleep` wakes up to a few hundred microseconds late, which would add up over the parts of a step; so the last
    stretch before the deadline is spun, which is short enough to cost nothing.

    Returns:
        How late the caller came, nanoseconds; 0 when it came in time.
    """
    came_ns = time.perf_counter_ns()
    if deadline_ns - came_ns > SPIN_NS:
        time.sleep((deadline_ns - came_ns - SPIN_NS) / 1e9)
    while time.perf_counter_ns() < deadline_ns:
        time.sleep(0)
    return max(0, came_ns - deadline_ns)
