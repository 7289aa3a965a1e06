"""Energy of CPU packages and memory from RAPL's counters in sysfs, as series of their own.

Never part of a GPU's energy. Knows no spans. AMD's processors are under the same names as Intel's.
Source: Linux kernel documentation, power/powercap: energy_uj, max_energy_range_uj, name.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S
from wattdock.metering.timeline import HostTimeline, MeterEvent, Series

if TYPE_CHECKING:
    from wattdock.clock import Clock

POWERCAP = Path("/sys/class/powercap")
# Domains that are added up. Packages include their cores and graphics, and a platform includes packages.
SUMMED = re.compile(r"package-\d+(-die-\d+)?|dram")
UJ_PER_J = 1e6
# Far below a wrap: 32 bits of the usual 15.3 µJ (Intel SDM volume 4, MSR_RAPL_POWER_UNIT) last 160 s at 400 W.
PERIOD_S = 0.1
# More than any package or its memory draws: four times the largest thermal design power sold (500 W). The kernel's
# constraint_*_max_power_uw is that power, which turbo exceeds, and AMD's processors have none.
MOST_POWER_W = 2_000.0
JOIN_S = 5.0


@dataclass(frozen=True)
class Domain:
    """One counter: its name ("package-0", "package-0-dram"), its folder, and what it counts up to, microjoules."""

    name: str
    folder: Path
    range_uj: int

    def read_uj(self) -> int:
        """Return the counter now, microjoules.

        Raises:
            OSError: It cannot be read.
        """
        return int((self.folder / "energy_uj").read_text())


@dataclass(frozen=True)
class Domains:
    """The counters of this host: all, or none and why; a sum of some would be taken for the host's.

    Attributes:
        reason: Why there is none; None where there are.
    """

    readable: tuple[Domain, ...] = ()
    reason: str | None = None

    def __str__(self) -> str:
        """What is read, or why nothing is, in words."""
        if self.reason:
            return f"no RAPL ({self.reason})"
        return f"RAPL: {', '.join(domain.name for domain in self.readable)}"


def find_domains(root: Path = POWERCAP) -> Domains:
    """Return the counters of every package and memory under `root`, those that mirror another left out."""
    readable: list[Domain] = []
    reasons: list[str] = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            name = label = (folder / "name").read_text().strip()
            if not SUMMED.fullmatch(label):
                continue
            # A domain within a package is named after both: intel-rapl:0:1 lies within intel-rapl:0.
            parent = folder.name.rpartition(":")[0]
            if parent.count(":"):
                name = f"{(root / parent / 'name').read_text().strip()}-{label}"
            domain = Domain(name, folder, int((folder / "max_energy_range_uj").read_text()))
            domain.read_uj()
            if any(_mirrors(domain, other) for other in readable):
                continue
        except PermissionError as error:
            reasons.append(f"{error.filename} is readable by root only; as root: chmod a+r {root}/*/energy_uj")
        except (OSError, ValueError) as error:
            reasons.append(f"{folder}: {error}")
        else:
            readable.append(domain)
    if not (readable or reasons):
        reasons.append(f"{root} has no CPU package; virtual machines have none")
    # Unreadable counters usually share one reason; the first is reported.
    return Domains((), reasons[0]) if reasons else Domains(tuple(readable))


def _mirrors(domain: Domain, other: Domain) -> bool:
    """Return whether a die's counter is that of another die of its package: reads in turn give rising values.

    Source: issue 1274 of CodeCarbon: each die of an AMD Threadripper 1950X shows the counter of the whole package.
    """
    package, die, _ = domain.name.partition("-die-")
    if not (die and other.name.startswith(package + die)):
        return False
    return other.read_uj() <= domain.read_uj() <= other.read_uj()


class RaplRecorder(threading.Thread):
    """Reads each counter at a fixed rate until it is stopped."""

    def __init__(self, domains: tuple[Domain, ...], clock: Clock) -> None:
        super().__init__(name="meter-rapl", daemon=True)
        self._clock = clock
        self._domains = domains
        self._rows: dict[str, list[tuple[int, int]]] = {domain.name: [] for domain in domains}
        self._events: dict[str, MeterEvent] = {}
        self._enough = threading.Event()

    def run(self) -> None:
        """Sample until stopped, then once more."""
        while not self._clock.wait(self._enough, PERIOD_S):
            self._sample()
        self._sample()

    def peek(self) -> HostTimeline:
        """Return what has been recorded so far."""
        series, events = {}, list(self._events.values())
        for domain in self._domains:
            series[domain.name], resets = unwrapped(list(self._rows[domain.name]), domain)
            events += resets
        return HostTimeline(series, tuple(events))

    def stop(self) -> None:
        """End the recording."""
        self._enough.set()
        if self.is_alive():
            self.join(JOIN_S)

    def _sample(self) -> None:
        for domain in self._domains:
            began_ns = self._clock.now_ns()
            try:
                energy_uj = domain.read_uj()
            except (OSError, ValueError) as error:
                # One event per counter; what follows shows as missing samples.
                self._events.setdefault(
                    domain.name, MeterEvent(began_ns, "read_error", reading=domain.name, said=str(error))
                )
                continue
            self._rows[domain.name].append(((began_ns + self._clock.now_ns()) // 2, energy_uj))


def unwrapped(rows: list[tuple[int, int]], domain: Domain) -> tuple[Series, list[MeterEvent]]:
    """Return joules since the first of (instant, microjoules) rows, and the resets between them, whose joules are lost.

    A counter starts again past its range. Where that, or its growth, means more power than can be, it was reset.
    """
    at_ns, energy_uj = np.asarray(rows, dtype=np.int64).reshape(-1, 2).T
    used_uj = np.diff(energy_uj)
    used_uj[used_uj < 0] += domain.range_uj
    # A read may be as late as it takes to be due again.
    most_uj = MOST_POWER_W * (np.diff(at_ns) / NS_PER_S + PERIOD_S) * UJ_PER_J
    is_lost = (used_uj < 0) | (used_uj > most_uj)
    edges = np.stack((at_ns[:-1], at_ns[1:], energy_uj[:-1], energy_uj[1:]))[:, is_lost].T.tolist()
    resets = [
        MeterEvent(start_ns, "counter_reset", end_ns, {"before_mj": before / 1e3, "after_mj": after / 1e3}, domain.name)
        for start_ns, end_ns, before, after in edges
    ]
    used_uj[is_lost] = 0
    return Series(at_ns.copy(), np.concatenate(([0.0], np.cumsum(used_uj)))[: len(at_ns)] / UJ_PER_J), resets
