from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from merge_samples import measured, request
from powercap import add_domain, set_uj, two_sockets

from wattdock.analysis.joules import host_energy, series_joules
from wattdock.clock import NS_PER_S
from wattdock.metering.none import NoMeter
from wattdock.metering.rapl import WithRapl, find_domains, unwrapped
from wattdock.metering.timeline import HostTimeline, Series, Span, Timeline
from wattdock.records.restart import RestartRecord

if TYPE_CHECKING:
    from pathlib import Path


class Advancing(threading.Thread):
    """Counts up real files by real time, at given powers, round and round."""

    def __init__(self, counters: dict[Path, float], range_uj: int, ahead_s: float) -> None:
        super().__init__(daemon=True)
        self.counters, self.range_uj, self.ahead_s = counters, range_uj, ahead_s
        self.enough = threading.Event()
        self.counted_j = dict.fromkeys(counters, ahead_s)

    def run(self) -> None:
        began_ns = time.monotonic_ns()
        while not self.enough.wait(0.002):
            for counter, power_w in self.counters.items():
                run_s = self.ahead_s + (time.monotonic_ns() - began_ns) / NS_PER_S
                set_uj(counter, int(run_s * power_w * 1e6) % self.range_uj)
                self.counted_j[counter] = run_s * power_w


def test_packages_and_memory_are_found_and_what_would_count_twice_is_named(tmp_path: Path) -> None:
    """Cores lie in their package, packages in the platform, and MMIO shows a package twice."""
    two_sockets(tmp_path)
    found = find_domains(tmp_path)
    assert [one.name for one in found.readable] == ["package-0", "package-0-dram", "package-1"]
    assert set(found.left_out) == {"package-0-core", "psys"}
    assert found.reason is None
    assert str(found).startswith("RAPL: package-0, package-0-dram, package-1 without ")


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    """No error where it was not asked for: most virtual machines have none."""
    found = find_domains(tmp_path / "powercap")
    assert (found.readable, found.left_out) == ((), ())
    assert "no CPU package" in str(found)


def test_two_packages_that_wrap_apart_give_the_joules_of_their_watts(tmp_path: Path) -> None:
    """Real files, a real thread that counts, and a real meter; one wraps twice, one once, one never."""
    range_uj = 120_000_000
    powers_w = dict(zip(two_sockets(tmp_path, range_uj).values(), (150.0, 7.0, 90.0), strict=True))
    advancing = Advancing(powers_w, range_uj, ahead_s=0.2)
    advancing.start()
    meter = WithRapl(NoMeter("no GPU here", name="rapl"), find_domains(tmp_path).readable)
    meter.start()
    time.sleep(0.5)
    start_ns, start_j = time.monotonic_ns(), dict(advancing.counted_j)
    with meter.window("pass"):
        time.sleep(1.0)
    end_ns, end_j = time.monotonic_ns(), dict(advancing.counted_j)
    time.sleep(0.2)
    timeline = meter.stop()
    advancing.enough.set()
    assert timeline.meter == "rapl"
    assert timeline.host is not None
    assert timeline.host.events == ()
    for (name, series), counter in zip(timeline.host.energy_j.items(), powers_w, strict=True):
        assert (np.diff(series.value) >= 0).all()
        found = series_joules(series, Span("pass", start_ns, end_ns))
        assert found is not None
        energy_j, timing_j = found
        true_j = end_j[counter] - start_j[counter]
        print(f"{name}: {energy_j:.2f} J, true {true_j:.2f} J, timing {timing_j:.2f} J")
        # Whatever the scheduler did: no more than the samples' intervals at both ends hold.
        assert energy_j == pytest.approx(true_j, abs=5 * timing_j)


def test_a_wrap_is_taken_out_and_nothing_else() -> None:
    """100 up to 110 with a range of 100: ten, however it is shown."""
    series = unwrapped([(0, 90), (1, 95), (2, 5), (3, 5), (4, 30)], 100)
    assert series.value.tolist() == pytest.approx([0, 5e-6, 15e-6, 15e-6, 40e-6])
    assert len(unwrapped([], 100).value) == 0


def test_a_counter_that_stops_answering_is_told_once_and_gives_no_energy(tmp_path: Path) -> None:
    """What was seen stays; what came after is unknown, not zero."""
    counter = add_domain(tmp_path, "intel-rapl:0", "package-0")
    meter = WithRapl(NoMeter(""), find_domains(tmp_path).readable)
    meter.start()
    time.sleep(0.25)
    counter.unlink()
    time.sleep(0.25)
    host = meter.stop().host
    assert host is not None
    assert len(host.events) == 1
    assert "package-0" in host.events[0].message
    assert series_joules(host.energy_j["package-0"], Span("pass", host.events[0].at_ns, time.monotonic_ns())) is None


def test_a_hole_in_the_samples_gives_no_energy() -> None:
    """A counter may have wrapped in it, who knows how often."""
    at_ns = np.array([0, 1, 2, 5, 6]) * NS_PER_S // 2
    holed = Series(at_ns, np.arange(5.0))
    found = series_joules(holed, Span("pass", NS_PER_S // 4, NS_PER_S))
    assert found is not None
    assert found == pytest.approx((1.5, (2 / 12) ** 0.5))
    assert series_joules(holed, Span("pass", NS_PER_S // 4, 2 * NS_PER_S)) is None


def test_host_joules_are_summed_over_passes_per_domain_and_unknown_where_one_pass_is() -> None:
    """Half a figure is none."""
    at_ns = np.arange(0, 20 * NS_PER_S, NS_PER_S // 10)
    series = {"package-0": Series(at_ns, at_ns / NS_PER_S * 100), "package-1": Series(at_ns[:60], at_ns[:60] / 1e9)}
    timeline = Timeline("rapl", 0, 20 * NS_PER_S, host=HostTimeline(series))
    passes = tuple(
        measured(n, start, start + 2.0, (request(0, start, start, start + 2, 5),)) for n, start in enumerate((2.0, 7.0))
    )
    host_j, host = host_energy([RestartRecord(0, passes=passes, timeline=timeline)])
    assert host_j == {"package-0": pytest.approx(400), "package-1": None}
    assert host is not None
    # Each pass: 10 J in the interval at either end. Passes add up, as what is off alike does.
    assert host.timing_j["package-0"] == pytest.approx(2 * 2**0.5 * 10 / 12**0.5)
    assert "never part of total_j" in host.statement
