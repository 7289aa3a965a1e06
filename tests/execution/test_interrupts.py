"""Signals wait until they may interrupt."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from wattdock.execution import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_outside_the_allowed_places_waits_for_the_next(number: signal.Signals) -> None:
    """Storing goes on; the next pass does not begin."""
    stored = False
    with Interrupts() as interrupts:
        os.kill(os.getpid(), number)
        stored = True
        with pytest.raises(KeyboardInterrupt), interrupts.interruptible():
            pytest.fail("the work began after the signal")
    assert stored


def test_a_signal_inside_interrupts_at_once_and_again() -> None:
    """The second Ctrl-C interrupts the clean-up that the first began."""
    with Interrupts() as interrupts, interrupts.interruptible():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_whose_exception_was_lost_is_still_found_by_whoever_waits() -> None:
    """What is raised in the wrong place can be swallowed there; the next look finds the signal."""
    with Interrupts() as interrupts, interrupts.interruptible():
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_handlers_are_put_back() -> None:
    """Whoever uses wattdock as a library keeps theirs."""
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("number", "waits"), [(signal.SIGINT, True), (signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_the_first_ctrl_c_and_a_schedulers_warning_let_a_pass_end(number: signal.Signals, waits: bool) -> None:
    """SIGTERM cuts it off."""
    ends = contextlib.nullcontext() if waits else pytest.raises(KeyboardInterrupt)
    with Interrupts() as interrupts, ends, interrupts.finishing_pass():
        os.kill(os.getpid(), number)
        interrupts.check()
