"""Without this, a machine that cannot shape a network would fail a run, or give numbers that look shaped; and a
launcher could remove the namespaces of one that is still at work.

Not covered here: real namespaces (`tests/distributed/test_shaped_network.py`).
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from repro.config import NetworkConfig
from repro.launch import network
from repro.launch.network import PREFIX, address, joined, obstacle, remove_stale

SHAPED = NetworkConfig(rate_mbit=100)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that would have been run; none is."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.setattr(network.subprocess, "run", run)
    monkeypatch.setattr(network, "obstacle", lambda: None)
    return ran


def test_an_unshaped_network_runs_no_command(commands: list[list[str]]) -> None:
    with joined(NetworkConfig(), 4) as plain:
        assert plain.namespaces == () and plain.notes == ()
    assert commands == []


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("need root", lambda patch: patch.setattr(os, "geteuid", lambda: 1000)),
        ("are Linux's", lambda patch: patch.setattr(network.sys, "platform", "darwin")),
        ("no ip and no tc here", lambda patch: patch.setattr(network.shutil, "which", lambda _: None)),
    ],
)
def test_a_machine_that_cannot_shape_says_so(reason: str, change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    change(monkeypatch)
    assert reason in str(obstacle())
    monkeypatch.setattr(network.subprocess, "run", lambda *_, **__: pytest.fail("a command was run"))
    with joined(SHAPED, 2) as plain:
        assert plain.namespaces == ()
        assert plain.notes[0].startswith("network: plain loopback, unshaped, instead of 100 Mbit/s: ")
        assert reason in plain.notes[0]


def test_gpus_are_not_shaped(commands: list[list[str]]) -> None:
    with joined(SHAPED, 2, on_gpus=True) as plain:
        assert "NCCL" in plain.notes[0]
    assert commands == []


def test_a_refusal_falls_back_and_cleans_up(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        refused = command[0] == "tc"
        return subprocess.CompletedProcess(command, 2 * refused, stdout="", stderr="Operation not permitted\nmore")

    monkeypatch.setattr(network.subprocess, "run", run)
    with joined(SHAPED, 2) as plain:
        assert plain.namespaces == ()
        assert "plain loopback" in plain.notes[0] and plain.notes[0].endswith("says: Operation not permitted")
    added = {command[3] for command in commands if command[:3] == ["ip", "netns", "add"]}
    deleted = {command[3] for command in commands if command[:3] == ["ip", "netns", "del"]}
    assert added and added <= deleted


def test_every_command_names_a_namespace_of_ours(commands: list[list[str]]) -> None:
    """So nothing is ever done to the machine's own interfaces."""
    with joined(SHAPED, 3) as shaped:
        assert len(shaped.namespaces) == 3
        assert shaped.command(1, ["python", "x.py"]) == ["ip", "netns", "exec", shaped.namespaces[1], "python", "x.py"]
        assert "100 Mbit/s" in shaped.notes[0] and "half duplex" in shaped.notes[1]
    for tool, *arguments in commands:
        if arguments[0] == "netns":
            assert arguments[1] == "list" or arguments[2].startswith(f"{PREFIX}-{os.getpid()}-"), arguments
        else:
            assert tool in ("ip", "tc") and arguments[0] == "-n"
            assert arguments[1].startswith(f"{PREFIX}-{os.getpid()}-"), arguments


def test_both_ends_of_every_link_are_shaped(commands: list[list[str]]) -> None:
    with joined(SHAPED, 2) as shaped:
        pass
    buckets = [command for command in commands if command[0] == "tc"]
    ends = {(command[2], command[6]) for command in buckets}
    bridge = shaped.namespaces[0].removesuffix("0") + "bridge"
    expected = {(name, "eth0") for name in shaped.namespaces} | {(bridge, "port0"), (bridge, "port1")}
    assert ends == expected
    assert all("100000000bit" in command and "12500b" in command for command in buckets)


def test_two_launchers_do_not_meet(commands: list[list[str]]) -> None:
    with joined(SHAPED, 2) as one, joined(SHAPED, 2) as two:
        assert not set(one.namespaces) & set(two.namespaces)


def test_only_the_dead_are_removed(monkeypatch: pytest.MonkeyPatch, commands: list[list[str]]) -> None:
    dead, living = 2**22 + 1, os.getppid()
    here = [
        f"{PREFIX}-{dead}-0a1b2c3d-0",
        f"{PREFIX}-{dead}-0a1b2c3d-bridge",
        f"{PREFIX}-{living}-0a1b2c3d-0",
        f"{PREFIX}-{dead}",
        f"my-{PREFIX}-{dead}-0a1b2c3d-0",
        "tp0",
    ]
    monkeypatch.setattr(network, "names_here", lambda: here)
    remove_stale()
    assert [command[3] for command in commands] == here[:2]


def test_addresses_are_distinct() -> None:
    assert address(0) == "10.79.0.1"
    assert len({address(rank) for rank in range(600)}) == 600
    assert address(255) == "10.79.1.0"
