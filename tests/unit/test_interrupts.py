"""Without these Ctrl-C between the start of a job and the launcher's knowing of it leaves the job behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from repro.launch.interrupts import Interrupts


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """A shell's background job ignores SIGINT; a terminal's does not."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_raised_behind_the_block_that_holds_it(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.held():
            send(number)
            done.append("submitted")
        done.append("followed")
    assert done == ["submitted"]


def test_raised_at_once_elsewhere_and_only_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Interrupts():
        try:
            send(signal.SIGINT)
            done.append("followed")
        finally:
            send(signal.SIGINT)
            done.append("cancelled")
    assert done == ["cancelled"]


def test_an_error_in_the_block_comes_before_the_interruption() -> None:
    with pytest.raises(ValueError), Interrupts() as interrupts, interrupts.held():
        send(signal.SIGINT)
        raise ValueError


def test_afterwards_signals_do_what_they_did() -> None:
    with Interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts():
        send(signal.SIGHUP)


def test_outside_the_main_thread_nothing_changes() -> None:
    before, inside = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with Interrupts():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert inside == [before]
