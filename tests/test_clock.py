"""Whether runner and host read the same clock."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import raises

from wattdock.clock import Clock, ClockIdentity, check_clock
from wattdock.errors import Cause, ClockError

HOST = ClockIdentity("boot-a", 4026531834)


def test_an_instant_inside_the_call_is_trusted_to_within_the_round_trip() -> None:
    """The round trip bounds any offset that is left."""
    assert check_clock(HOST, HOST, sent_ns=100, runner_ns=130, received_ns=150).round_trip_ns == 50


@given(st.integers(-(10**15), 10**15))
def test_an_instant_outside_the_call_is_refused_by_however_little(offset_ns: int) -> None:
    """A clock that is off cannot place a span on the meter's timeline."""
    if 0 <= offset_ns <= 10:
        assert check_clock(HOST, HOST, sent_ns=0, runner_ns=offset_ns, received_ns=10).round_trip_ns == 10
    else:
        with raises(ClockError, cause=Cause.OTHER_CLOCK):
            check_clock(HOST, HOST, sent_ns=0, runner_ns=offset_ns, received_ns=10)


@pytest.mark.parametrize("other", [{"boot_id": "boot-b"}, {"time_namespace": 1}])
def test_another_boot_or_time_namespace_is_refused_though_the_instants_fit(other: dict[str, object]) -> None:
    """Clocks that happen to agree now need not agree later."""
    runner = dataclasses.replace(HOST, **other)  # type: ignore[arg-type]
    with raises(ClockError, "runner", *map(str, other.values()), cause=Cause.OTHER_CLOCK):
        check_clock(HOST, runner, sent_ns=0, runner_ns=5, received_ns=10)


def test_a_kernel_without_time_namespaces_is_judged_by_boot_and_instants() -> None:
    """Unknown on both sides is no difference; on one side only it is."""
    old = dataclasses.replace(HOST, time_namespace=None)
    assert check_clock(old, old, sent_ns=0, runner_ns=5, received_ns=10).boot_id == "boot-a"
    with raises(ClockError, "None", HOST.time_namespace, cause=Cause.OTHER_CLOCK):
        check_clock(HOST, old, sent_ns=0, runner_ns=5, received_ns=10)


def test_this_host_knows_its_own_clock() -> None:
    """The real files are there and are read."""
    assert len(Clock().identity().boot_id) == 36
