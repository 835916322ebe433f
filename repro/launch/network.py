"""A shaped network for local ranks: one network namespace a rank, joined by a bridge in a namespace of its own.

    rank 0's namespace           bridge's namespace          rank 1's namespace
    eth0 10.79.0.1 ──veth── port0 ── bridge ── port1 ──veth── eth0 10.79.0.2

tc's token bucket shapes both ends of each pair: eth0 is what a rank may send, its port what it may receive. Both ends
lie in namespaces of ours, so the machine's own interfaces, routes and firewall are never touched, and a namespace that
is deleted takes its end with it. With a delay, `repro.launch.relay` stands in each veth pair's place.

Namespaces carry the launcher's process id in their name. What a launcher that was killed leaves behind, the next one
removes. Linux, root, `ip` and `tc` (iproute2) are needed; without them ranks talk over plain loopback, and the run's
notes say so.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from repro.config import NetworkConfig

PREFIX = "repro-net"
INTERFACE = "eth0"
"""A rank's end of its link, in its own namespace."""
BURST_SECONDS = 1e-3
"""Worth of rate that may pass at once."""
MTU = 9000
"""Jumbo frames: fewer packets leave the cores to the ranks, and headers are less than 1 % of what is sent."""
LEAST_BURST = 10_000
"""Bytes; a token bucket must hold a packet."""
QUEUE_MS = 50
"""Waiting a packet may have before it is dropped."""
HALF_DUPLEX = (
    "gloo may be half duplex: an AllToAll in which all ranks send and receive gets between half and all of the rate "
    "each way, often one direction after the other; two collectives of different groups can have both ways at once"
)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins the ranks."""

    namespaces: tuple[str, ...] = ()
    """Of each rank; empty: all are on plain loopback."""
    notes: tuple[str, ...] = ()
    """What a reader of the run's numbers must know."""

    def command(self, rank: int, command: list[str]) -> list[str]:
        """What runs `command` where rank `rank` lives. The process started is the command's own."""
        return ["ip", "netns", "exec", self.namespaces[rank], *command]


def address(rank: int) -> str:
    """Of a rank, in the shaped network."""
    return f"10.79.{(rank + 1) // 256}.{(rank + 1) % 256}"


def obstacle() -> str | None:
    """Why there can be no shaped network on this machine; None when nothing is known to stand against it."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"no {' and no '.join(missing)} here (package iproute2)" if missing else None


@contextmanager
def joined(config: NetworkConfig, ranks: int, *, on_gpus: bool = False) -> Iterator[Network]:
    """The network that `config` asks for, while the block runs; processes in it must have ended when the block does.

    Args:
        on_gpus: ranks have GPUs, whose collectives would go past the shaped links.

    Yields:
        Plain loopback, with a note that says why, where the machine cannot shape.
    """
    if config.rate_mbit == 0:
        yield Network()
        return
    reason = "NCCL's traffic does not pass a shaped link" if on_gpus else obstacle()
    if reason is not None:
        yield _loopback(config, reason)
        return
    remove_stale()
    names = _names(ranks)
    with ExitStack() as undo:
        for name in names:
            undo.callback(_quietly, "netns", "del", name)
        try:
            _build(names, config, undo)
            network = Network(namespaces=tuple(names[1:]), notes=(_shape(config), HALF_DUPLEX))
        except _RefusedError as refused:
            network = _loopback(config, str(refused))
        yield network


def remove_stale() -> None:
    """Delete the namespaces of launchers that are gone. Nobody else's are touched."""
    for name in names_here():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-[0-9a-f]+-\w+", name)
        if found and not _alive(int(found[1])):
            _quietly("netns", "del", name)


def names_here() -> list[str]:
    """All named network namespaces of this machine."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def _names(ranks: int) -> list[str]:
    """The bridge's namespace, then those of the ranks."""
    own = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    return [f"{own}-bridge", *(f"{own}-{rank}" for rank in range(ranks))]


def _build(names: list[str], config: NetworkConfig, undo: ExitStack) -> None:
    bridge, *ranks = names
    for name in names:
        _ip("netns", "add", name)
    if config.delay_ms > 0:
        _delayed(bridge, ranks, config.delay_ms, undo)
    else:
        for rank, name in enumerate(ranks):
            _ip("-n", name, "link", "add", INTERFACE, "type", "veth", "peer", "name", _port(rank), "netns", bridge)
    _ip("-n", bridge, "link", "add", "bridge", "type", "bridge", "stp_state", "0", "forward_delay", "0")
    _ip("-n", bridge, "link", "set", "bridge", "addrgenmode", "none", "up")
    for rank, name in enumerate(ranks):
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", bridge, "link", "set", _port(rank), "master", "bridge")
        _ip("-n", name, "addr", "add", f"{address(rank)}/16", "dev", INTERFACE)
        for place, end in ((name, INTERFACE), (bridge, _port(rank))):
            # Without IPv6 addresses nothing is on the wire but what ranks send.
            _ip("-n", place, "link", "set", end, "mtu", str(MTU), "addrgenmode", "none", "up")
            _tc(place, end, config.rate_mbit)


def _delayed(bridge: str, ranks: list[str], delay_ms: float, undo: ExitStack) -> None:
    """Links that delay. From rank to rank a frame passes two of them."""
    ends = [end for rank, name in enumerate(ranks) for end in (name, INTERFACE, bridge, _port(rank))]
    command = [sys.executable, "-m", "repro.launch.relay", str(delay_ms / 2), str(MTU), *ends]
    relay = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    undo.callback(_end, relay)
    assert relay.stdout is not None and relay.stderr is not None
    if relay.stdout.readline() != "ready\n":
        raise _RefusedError(f"no delay: {(relay.stderr.read().strip() or 'the relay died').splitlines()[-1]}")


def _end(relay: subprocess.Popen[str]) -> None:
    relay.kill()
    relay.communicate()


def _port(rank: int) -> str:
    """The bridge's end of a rank's link."""
    return f"port{rank}"


def _tc(namespace: str, interface: str, rate_mbit: float) -> None:
    rate = round(rate_mbit * 1e6)
    burst = max(LEAST_BURST, round(rate / 8 * BURST_SECONDS))
    bucket = ["tbf", "rate", f"{rate}bit", "burst", f"{burst}b", "latency", f"{QUEUE_MS}ms"]
    _run(["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *bucket])


def _shape(config: NetworkConfig) -> str:
    delay = f", {config.delay_ms:g} ms from rank to rank (userspace relay)" if config.delay_ms else ""
    return (
        f"network: {config.rate_mbit:g} Mbit/s a rank each way{delay} (network namespaces, tc token bucket, one bridge)"
    )


def _loopback(config: NetworkConfig, reason: str) -> Network:
    wanted = f"{config.rate_mbit:g} Mbit/s" + (f" and {config.delay_ms:g} ms" if config.delay_ms else "")
    return Network(notes=(f"network: plain loopback, unshaped, instead of {wanted}: {reason}",))


class _RefusedError(Exception):
    """The machine does not let us; says what."""


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _RefusedError(f"{' '.join(command[:3])}: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise _RefusedError(f"`{' '.join(command)}` says: {said}")


def _quietly(*arguments: str) -> None:
    """What is not there needs no removal."""
    subprocess.run(["ip", *arguments], capture_output=True, check=False, timeout=30)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
