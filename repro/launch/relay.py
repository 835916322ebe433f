"""Delays what passes between network interfaces: a stand-in for tc's netem, which many kernels lack.

    python -m repro.launch.relay DELAY_MS MTU NAMESPACE_A INTERFACE_A NAMESPACE_B INTERFACE_B [...]

For each pair it makes a TAP interface in either namespace, and hands every frame that goes into one of them out of the
other, in order, after the delay. It prints one line when all are there, and ends when its standard input does, so that
it never outlives the launcher; the interfaces go with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque
from pathlib import Path

NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_FRAME_OVERHEAD = 64
FRAMES_AT_ONCE = 32
"""Read from one interface before the others have their turn."""


def tap(namespace: str, interface: str) -> int:
    """Make a TAP interface in a namespace; it lives as long as the file descriptor returned."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open() as place:
        if libc.setns(place.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", interface.encode(), _IFF_TAP | _IFF_NO_PI))
    return descriptor


def relay(pairs: list[tuple[int, int]], delay_s: float, frame_bytes: int, until: int) -> None:
    """Hand frames over, both ways, until `until` is at its end.

    Args:
        pairs: file descriptors of the two ends of each link.
        frame_bytes: of the largest frame.
        until: file descriptor that is watched.
    """
    other = dict(pairs) | {b: a for a, b in pairs}
    due: deque[tuple[float, int, bytes]] = deque()  # All wait equally long, so whatever came first leaves first.
    watched = selectors.DefaultSelector()
    for descriptor in (*other, until):
        watched.register(descriptor, selectors.EVENT_READ)
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        for key, _ in watched.select(wait):
            if key.fd == until:
                return
            for _ in range(FRAMES_AT_ONCE):
                try:
                    frame = os.read(key.fd, frame_bytes)
                except BlockingIOError:
                    break
                except OSError:  # The interface is not up yet.
                    break
                due.append((time.monotonic() + delay_s, other[key.fd], frame))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, target, frame = due.popleft()
            try:
                os.write(target, frame)
            except OSError:  # Its interface is down: a wire without a listener.
                continue


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    delay_ms, mtu, *ends = arguments
    taps = [tap(namespace, interface) for namespace, interface in zip(ends[::2], ends[1::2], strict=True)]
    print("ready", flush=True)
    relay(list(zip(taps[::2], taps[1::2], strict=True)), float(delay_ms) / 1e3, int(mtu) + _FRAME_OVERHEAD,
          sys.stdin.fileno())  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
