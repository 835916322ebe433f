"""Sleeping to the point: an emulated accelerator's time passes while the cores stay free for gloo.

`time.sleep` wakes up to a few hundred microseconds late, which would add up over the parts of a step; so the last
stretch before the deadline is spun, which is short enough to cost nothing.
"""

from __future__ import annotations

import time

SPIN_NS = 200_000
"""Left to spin: what a sleeping thread may oversleep by on an idle core."""


def sleep_until(deadline_ns: int) -> int:
    """Return at `deadline_ns` of `time.perf_counter_ns`, or at once when it is past.

    Returns:
        How late the caller came, nanoseconds; 0 when it came in time.
    """
    came_ns = time.perf_counter_ns()
    if deadline_ns - came_ns > SPIN_NS:
        time.sleep((deadline_ns - came_ns - SPIN_NS) / 1e9)
    while time.perf_counter_ns() < deadline_ns:
        time.sleep(0)
    return max(0, came_ns - deadline_ns)
