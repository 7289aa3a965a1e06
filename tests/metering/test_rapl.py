from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from golden.replay import analysed, load
from make.outcomes import known
from make.records import experiment, measured, request
from metering.powercap import RANGE_UJ, add_domain, set_uj, two_sockets
from seams.analysis import measured_energy
from seams.metering import Domain, HostTimeline, RaplRecorder, Series, Source, find_domains

from wattdock.clock import NS_PER_S, Clock
from wattdock.metering import Meter, MeterEvent, Span, Timeline
from wattdock.records import RestartRecord
from wattdock.store import store_result

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Called


class Virtual(Clock):
    """A clock that lets counter files count while it is waited on, and ends the recording after some seconds."""

    def __init__(self, until_s: float, count: Callable[[float], None]) -> None:
        self._now_ns, self._until_s, self._count = 0, until_s, count
        count(0.0)

    def now_ns(self) -> int:
        return self._now_ns

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._now_ns += int(timeout_s * NS_PER_S)
        self._count(self._now_ns / NS_PER_S)
        if self._now_ns >= self._until_s * NS_PER_S:
            event.set()
        return event.is_set()


def recorded(domains: tuple[Domain, ...], clock: Virtual) -> HostTimeline:
    recorder = RaplRecorder(domains, clock)
    recorder.run()
    return recorder.peek()


def joules(series: Series, span: Span) -> float | None:
    return HostTimeline({"package-0": series}).joules(span)["package-0"]


def test_packages_and_memory_are_found_and_nothing_that_would_count_twice(tmp_path: Path) -> None:
    """Cores lie in their package, packages in the platform, and MMIO shows a package twice."""
    two_sockets(tmp_path)
    domains = find_domains(tmp_path)
    assert [domain.name for domain in domains.readable] == ["package-0", "package-0-dram", "package-1"]
    assert domains.reason is None
    assert str(domains) == "RAPL: package-0, package-0-dram, package-1"


@pytest.mark.parametrize(
    ("energies_uj", "kept"),
    [
        # Two sockets of two dies each, as a kernel shows them that reads each socket's counter once for every die.
        ([(0, 0, 700), (0, 1, 700), (1, 0, 900), (1, 1, 900)], ["package-0-die-0", "package-1-die-0"]),
        # Sockets whose counters happen to be equal, and dies with counters of their own.
        ([(0, 0, 700), (1, 0, 700)], ["package-0-die-0", "package-1-die-0"]),
        ([(0, 0, 700), (0, 1, 701)], ["package-0-die-0", "package-0-die-1"]),
    ],
)
def test_a_packages_counter_that_each_of_its_dies_shows_counts_once(
    tmp_path: Path, energies_uj: list[tuple[int, int, int]], kept: list[str]
) -> None:
    """Their sum would be the package's energy as often as it has dies."""
    for i, (package, die, energy_uj) in enumerate(energies_uj):
        add_domain(tmp_path, f"intel-rapl:{i}", f"package-{package}-die-{die}", energy_uj)
    assert [domain.name for domain in find_domains(tmp_path).readable] == kept


def test_a_part_of_the_packages_is_not_the_host_s(tmp_path: Path) -> None:
    """One of two unreadable: a sum of the other would stand as the host's joules."""
    counters = two_sockets(tmp_path)
    counters["package-1"].write_text("no number")
    domains = find_domains(tmp_path)
    assert domains.readable == ()
    assert str(domains).startswith("no RAPL (")
    assert "intel-rapl:1" in str(domains)


def test_a_machine_without_rapl_says_so(tmp_path: Path) -> None:
    """No error where it was not asked for: most virtual machines have none."""
    domains = find_domains(tmp_path / "powercap")
    assert domains.readable == ()
    assert "no CPU package" in str(domains)


def test_two_packages_that_wrap_apart_give_the_joules_of_their_watts(tmp_path: Path) -> None:
    """Real files, whose counters start again past their range; one wraps twice, one once, one never."""
    range_uj = 120_000_000
    powers_w = dict(zip(two_sockets(tmp_path, range_uj).values(), (150.0, 60.0, 9.0), strict=True))

    def count(passed_s: float) -> None:
        for counter, power_w in powers_w.items():
            set_uj(counter, int((0.2 + passed_s) * power_w * 1e6) % range_uj)

    host = recorded(find_domains(tmp_path).readable, Virtual(2.0, count))
    assert host.events == ()
    for series, power_w in zip(host.energy_j.values(), powers_w.values(), strict=True):
        assert joules(series, Span("pass", NS_PER_S // 2, 3 * NS_PER_S // 2)) == pytest.approx(power_w, rel=1e-6)


@pytest.mark.parametrize(
    ("jumps_to", "is_wrap"),
    [
        (lambda uj: uj - 90_000_000, False),
        (lambda uj: uj + 350_000_000, True),
        (lambda uj: uj + 450_000_000, False),
        (lambda uj: uj + 350_000_000 - RANGE_UJ, True),
        (lambda uj: uj + 450_000_000 - RANGE_UJ, False),
    ],
    ids=["reset", "growth", "impossible growth", "wrap", "impossible wrap"],
)
def test_a_counter_is_reset_where_a_wrap_would_mean_more_power_than_can_be(
    tmp_path: Path, jumps_to: Callable[[int], int], is_wrap: bool
) -> None:
    """The joules of a span over it are lost, not the whole range that a wrap would add; those beside it are known."""
    counter = add_domain(tmp_path, "intel-rapl:0", "package-0", range_uj=RANGE_UJ)
    begins_uj = RANGE_UJ - 300_000_000 if jumps_to(0) < -100_000_000 else 100_000_000

    def count(passed_s: float) -> None:
        used_uj = begins_uj + round(passed_s * 60e6)
        set_uj(counter, used_uj if passed_s < 1.05 else jumps_to(used_uj))

    host = recorded(find_domains(tmp_path).readable, Virtual(2.0, count))
    before, over, after = (
        host.joules(Span("pass", int(start_s * NS_PER_S), int(end_s * NS_PER_S)))["package-0"]
        for start_s, end_s in ((0.2, 0.9), (0.5, 1.5), (1.2, 1.8))
    )
    assert [before, after] == pytest.approx([42, 36])
    if is_wrap:
        assert over == pytest.approx(60 + 350)
        assert host.events == ()
    else:
        [event] = host.events
        assert (over, event.kind, event.at_ns, event.end_ns) == (None, "counter_reset", NS_PER_S, 11 * NS_PER_S // 10)
        assert event.message.startswith("package-0: counter went from ")


def test_a_meter_records_the_hosts_counters_beside_the_gpus(tmp_path: Path) -> None:
    """A machine without a GPU still says what its packages used."""
    two_sockets(tmp_path)
    meter = Meter(Source("no GPU here", name="rapl"), find_domains(tmp_path).readable)
    meter.start()
    timeline = meter.stop()
    assert (timeline.meter, timeline.reason) == ("rapl", "no GPU here")
    assert timeline.host is not None
    assert timeline.host.energy_j.keys() == {"package-0", "package-0-dram", "package-1"}


def test_a_counter_that_stops_answering_is_told_once_and_gives_no_energy(tmp_path: Path) -> None:
    """What was seen stays; what came after is unknown, not zero."""
    counter = add_domain(tmp_path, "intel-rapl:0", "package-0")
    domains = find_domains(tmp_path).readable
    host = recorded(domains, Virtual(1.0, lambda passed_s: counter.unlink(missing_ok=True) if passed_s > 0.5 else None))
    [event] = host.events
    assert event.reading == "package-0"
    assert joules(host.energy_j["package-0"], Span("pass", 0, NS_PER_S)) is None


@pytest.mark.parametrize("case", ["fake-rapl", "fake-rapl-beside-gpu"])
def test_what_the_hosts_counters_lost_is_told_in_the_line_of_the_meter(
    tmp_path: Path, called: Called, case: str
) -> None:
    """With its restart, from the stored records; it changes no verdict, since no other figure holds these joules."""
    found = load(case)
    result, [restart] = analysed(found.facts, found.restarts)
    [check] = [each for each in known(result.audit).checks if each.name == "meter"]
    timeline = known(restart.timeline)
    at_ns = restart.passes[0].span.start_ns + NS_PER_S
    reset = MeterEvent(at_ns, "counter_reset", at_ns + 1, {"before_mj": 9e6, "after_mj": 1.0}, "package-1")
    lost = replace(restart, timeline=replace(timeline, host=replace(known(timeline.host), events=(reset,))))
    folder = store_result(result, [(lost, None)], log=tmp_path / "none", output_dir=tmp_path)
    [told] = json.loads(called("show", folder, "--again", "--json").stdout)
    [again] = [each for each in told["audit"]["checks"] if each["name"] == "meter"]
    assert again["figure"] == f"{check.figure}; RAPL, restart 1: {reset.message}"
    assert again["status"] == check.status
    assert told["energy"]["host_j"]["package-1"] is None
    shown = " ".join(called("show", folder, "--again", "--checks").stdout.split())
    assert "RAPL, restart 1: package-1: counter went from 9000000 to 1 mJ" in shown


def test_a_hole_in_the_samples_gives_no_energy() -> None:
    """A counter may have wrapped in it, who knows how often."""
    at_ns = np.array([0, 1, 2, 5, 6]) * NS_PER_S // 2
    holed = Series(at_ns, np.arange(5.0))
    assert joules(holed, Span("pass", NS_PER_S // 4, NS_PER_S)) == pytest.approx(1.5)
    assert joules(holed, Span("pass", NS_PER_S // 4, 2 * NS_PER_S)) is None


def test_host_joules_are_summed_over_passes_per_domain_and_unknown_where_one_pass_is() -> None:
    """Half a figure is none."""
    at_ns = np.arange(0, 20 * NS_PER_S, NS_PER_S // 10)
    series = {"package-0": Series(at_ns, at_ns / NS_PER_S * 100), "package-1": Series(at_ns[:60], at_ns[:60] / 1e9)}
    timeline = Timeline("rapl", 0, 20 * NS_PER_S, host=HostTimeline(series))
    passes = tuple(
        measured(n, start, start + 2.0, (request(0, start, start, start + 2, 5),)) for n, start in enumerate((2.0, 7.0))
    )
    host_j = measured_energy(experiment(RestartRecord(0, passes=passes, timeline=timeline))).host_j
    assert host_j == {"package-0": pytest.approx(400), "package-1": None}
