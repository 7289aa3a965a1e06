"""What stands beside a result's energy: a second meter's windows and the host's own counters."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from make.records import constant_power, experiment, measured, request, timeline
from seams.analysis import measured_energy
from seams.audit import AuditInput, readings_agree
from seams.metering import HostTimeline, Series, Ticks, Window

from wattdock.clock import NS_PER_S
from wattdock.metering import GpuTimeline, MeterEvent, Span, Timeline
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from seams.analysis import EnergyResult

    from wattdock.audit import Outcome

PASS = measured(0, 10, 20, (request(0, 10, 10.5, 20, 100),))
SECONDS = np.arange(0, 40, 0.1)
HOST = HostTimeline({"package-0": Series((SECONDS * NS_PER_S).astype(np.int64), SECONDS * 55)})


def window(start_s: float, end_s: float, energy_j: dict[str, float], reason: str | None = None) -> Window:
    return Window(Span("pass 1/1", int(start_s * NS_PER_S), int(end_s * NS_PER_S)), energy_j, reason)


def energy_with(*windows: Window, host: HostTimeline | None = None) -> EnergyResult:
    watched = timeline(
        constant_power("GPU-a", 600, start_s=0, end_s=40), constant_power("GPU-b", 80, start_s=0, end_s=40)
    )
    watched = dataclasses.replace(watched, windows=windows, host=host)
    return measured_energy(experiment(RestartRecord(0, passes=(PASS,), timeline=watched), bystanders=["GPU-b"]))


def test_a_pass_is_compared_over_the_window_that_holds_it_not_over_its_own_span() -> None:
    """Eleven seconds at 600 W, of which the pass is ten; another pass's window is not this one's."""
    other = window(25, 30, {"GPU-a": 1.0})
    check = energy_with(window(9.5, 20.5, {"GPU-a": 6630.0, "GPU-b": 870.0}), other).cross_check
    assert check is not None
    (compared,) = check.windows
    assert compared.meter_j == {"GPU-a": pytest.approx(6600, abs=1), "GPU-b": pytest.approx(880, abs=1)}
    # Of the GPU used alone.
    assert compared.difference_j == pytest.approx(30, abs=1)
    assert compared.difference_share == pytest.approx(30 / 6600, rel=0.05)
    assert (check.worst_difference_j, check.worst_difference_share) == (
        compared.difference_j,
        compared.difference_share,
    )
    # At each end the joules of a period and of 20 ms on either side.
    assert compared.bound_j == pytest.approx(2 * 600 * 0.14, rel=0.01)


def agreement(energy: Any, *power_over_counter: float | None) -> Outcome:
    """Return whether readings agree, the second meter's and sampled power: 1 % too high unless told otherwise."""
    gpus = {
        f"GPU-{number}": SimpleNamespace(power_over_counter=ratio)
        for number, ratio in enumerate(power_over_counter or (0.01,))
    }
    environment = SimpleNamespace(gpu_count=len(gpus))
    config = SimpleNamespace(command=None)
    result: Any = SimpleNamespace(config=config, environment=environment, energy=energy, procedure="", used_gpus=gpus)
    outcome = readings_agree(AuditInput(result))
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    ("ratios", "status", "figure"),
    [
        ((0.01, -0.03), "pass", "+1.00%; -3.00%"),
        ((0.01, -0.031), "fail", "+1.00%; -3.10%"),
        ((0.01, None), "unknown", "+1.00%"),
        ((-0.031, None), "fail", "-3.10%"),
        ((None, 0.05), "fail", "+5.00%"),
        ((None,), "unknown", "no counter and power throughout 5 s and more of every pass"),
    ],
)
def test_without_a_second_meter_power_alone_is_held_against_the_counter(
    ratios: tuple[float | None, ...], status: str, figure: str
) -> None:
    """Of each GPU; one that disagrees is wrong though another is unknown."""
    energy = energy_with()
    assert energy.cross_check is None
    assert agreement(energy, *ratios)[:2] == (status, figure)


@pytest.mark.parametrize(("second_j", "status"), [(6600.0, "unknown"), (7000.0, "fail")])
def test_a_window_in_which_meters_differ_is_wrong_though_another_was_not_read(second_j: float, status: str) -> None:
    """The figure holds both."""
    energy = energy_with(window(9.5, 20.5, {"GPU-a": second_j}))
    assert energy.cross_check is not None
    [read] = energy.cross_check.windows
    unread = read.model_copy(update={"difference_j": None, "bound_j": None, "reason": "the second meter broke off"})
    crossed = energy.cross_check.model_copy(update={"windows": [unread, read]})
    found = agreement(energy.model_copy(update={"cross_check": crossed}))
    assert found.status == status
    assert found.figure.endswith("; the second meter broke off")
    assert ("nvml differs by 400.0 J" in found.figure) == (status == "fail")


@pytest.mark.parametrize(("zeus_j", "status"), [(6600, "pass"), (6700, "pass"), (7000, "fail"), (6200, "fail")])
def test_meters_that_differ_by_more_than_their_steps_do_not_agree(zeus_j: float, status: str) -> None:
    """The audit's figure is the difference and the bound; power that was not sampled leaves the rest unknown."""
    energy = energy_with(window(9.5, 20.5, {"GPU-a": zeus_j}))
    outcome = agreement(energy)
    assert outcome.status == status
    assert outcome.figure.startswith(f"+1.00%; nvml differs by {abs(zeus_j - 6600):.1f} J where counter steps allow ")
    assert agreement(energy, None).status == ("unknown" if status == "pass" else status)


def test_a_window_that_failed_is_unknown_and_never_passes() -> None:
    """Its reason is the figure."""
    energy = energy_with(window(9.5, 20.5, {}, reason="ZeusMonitor: GPU is lost"))
    assert energy.total_j is not None
    assert agreement(energy)[:2] == ("unknown", "+1.00%; ZeusMonitor: GPU is lost")
    assert agreement(energy, 0.04).status == "fail"


def test_joules_of_the_host_are_told_per_domain_and_are_in_no_other_figure() -> None:
    """The boundary of everything else is the GPU boards."""
    without, energy = energy_with(), energy_with(host=HOST)
    assert energy.host_j == {"package-0": pytest.approx(550)}
    assert energy.passes[0].host_j == {"package-0": pytest.approx(550)}
    assert without.host_j == {}
    ours = energy.model_dump(exclude={"host_j", "passes"})
    assert ours == without.model_dump(exclude={"host_j", "passes"})
    assert energy.passes[0].total_j == without.passes[0].total_j


def test_an_excerpt_keeps_the_windows_and_host_samples_inside_it() -> None:
    """A row holds what its own passes were checked with, and no neighbour's."""
    windows = (window(9.5, 20.5, {}), window(22, 30, {}))
    cut = Timeline("zeus", 0, 40 * NS_PER_S, windows=windows, host=HOST).excerpt([PASS.span])
    assert cut.windows == windows[:1]
    assert cut.host is not None
    at_ns = cut.host.energy_j["package-0"].at_ns
    assert (at_ns[0] / NS_PER_S, at_ns[-1] / NS_PER_S) == (pytest.approx(3.5), pytest.approx(26.5))


@pytest.mark.parametrize(
    ("kind", "at_s", "end_s", "is_kept"),
    [
        ("gap", 12, None, True),
        ("gap", 38, None, False),
        ("counter_frozen", 12, 60, True),
        ("counter_frozen", 1, 12, True),
        ("counter_frozen", 1, 60, True),
        ("counter_frozen", 1, 3, False),
        ("counter_frozen", 500, 600, False),
        ("not_supported", 0, None, True),
    ],
)
def test_an_excerpt_keeps_the_events_that_touch_it_and_what_holds_for_the_whole_timeline(
    kind: Any, at_s: int, end_s: int | None, is_kept: bool
) -> None:
    """Another experiment's gap or frozen counter is no fault of this experiment, whose pass is at 10 to 20 s."""
    event = MeterEvent(at_s * NS_PER_S, kind, end_s and end_s * NS_PER_S)
    gpu = GpuTimeline("GPU-a", "counter", Ticks.from_rows(), events=(event,))
    cut = Timeline("nvml", 0, 600 * NS_PER_S, {gpu.uuid: gpu}).excerpt([PASS.span])
    assert cut.gpus[gpu.uuid].events == ((event,) if is_kept else ())
