"""Host ÷ boards of a result, from a file with readings of the whole server's watts (IPMI, Redfish, a PDU).

Readings are late means by a time that nobody states, so only windows of steady work tell: after a lead-in that is
longer. Why, and how far this holds: docs/decisions/meters.md.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wattdock.analysis import statistics
from wattdock.clock import NS_PER_S
from wattdock.errors import ConfigError
from wattdock.forms.rungs import Factor
from wattdock.opening import read_regular
from wattdock.values import known_sum

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from wattdock.analysis import ExperimentResult
    from wattdock.records import RestartRecord

    Floats = NDArray[np.float64]

FORM = "give a CSV file of watts and times, in Unix seconds or with their zone, as in 2026-11-29T17:00:00Z"
# What names of the columns hold, in small letters.
COLUMNS = (r"time|date|unix|epoch", r"watt|power|\bw\b")
# Unix times beyond this are milliseconds; a server takes less than so many watts.
MOST_S, MOST_W = 1e11, 1e6
# The oldest that a reading shows, s; and in a window the fewest readings, and the longest time without one, as a share.
LAG_S, LEAST_READINGS, MOST_MISSING = 20.0, 3, 0.5
# The host's watts for each of the boards' watts; standard deviation of a rectangle of width 1.
SLOPE, OF_RECTANGLE = 1.1, 12**-0.5
# Half the 95 % interval, in standard uncertainties.
HALF95 = 1.96
# Sizes of blocks of readings whose scatter is tried, and the fewest blocks of a window.
BLOCKS, LEAST_BLOCKS = (1, 2, 4, 8), 5
# Smallest step of readings, as a share of the largest: a finer one is no meter's.
LEAST_STEP = 1e-4
# By how much later than their times readings are tried, s; over how long before them the boards are averaged; the
# fewest readings that tell; and which squared correlations with the boards say that these are, or are not, the times.
SHIFTS_S, FOLLOWED_S, LEAST_FOLLOWING, ALIKE, UNLIKE = np.arange(-300.0, 301, 6), 5.0, 20, 0.8, 0.5


class HostReadings(NamedTuple):
    """Readings of a server's power in order, by Unix time of the host's clock."""

    at_s: Floats
    watts: Floats

    @classmethod
    def read(cls, path: Path) -> HostReadings:
        """Return the readings in a CSV file with a column of times and one of watts; rows without either are left out.

        Raises:
            ConfigError: The file cannot be read, lacks a column, or holds what is no time or no power of a server.
        """
        import pyarrow as pa
        from pyarrow import csv

        try:
            table = csv.read_csv(io.BytesIO(read_regular(path, follow=True))).drop_null()
            named = [[name for name in table.column_names if re.search(of, name.lower())][:1] for of in COLUMNS]
            if not all(named) or named[0] == named[1]:
                raise ValueError(f"columns {', '.join(table.column_names)}: name one time and one watts")
            (times,), (power,) = (table.select(name).columns for name in named)
            if is_date := pa.types.is_timestamp(times.type) and times.type.tz:
                times = times.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
            at_s, watts = times.cast(pa.float64()).to_numpy(), power.cast(pa.float64()).to_numpy()
            at_s = at_s / (1e6 if is_date else 1)
            good = (np.diff(at_s, prepend=0) >= 0) & (at_s < MOST_S) & (watts > 0) & (watts < MOST_W)
            if good.all() and len(set(watts)) < 2:
                raise ValueError(f"{len(watts)} readings of {len(set(watts))} values: a meter's watts change")
            if not good.all():
                bad = table.slice(int(np.argmin(np.append(good, False))), 1).to_pylist()
                raise ValueError(f"{bad}: times must rise, and watts be those of a server")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ConfigError(f"--host-readings {path}: {getattr(error, 'strerror', None) or error}", FORM) from error
        return cls(at_s, watts)

    def factor(self, result: ExperimentResult, restarts: Iterable[RestartRecord]) -> Factor | str:
        """Return host ÷ boards in a result's windows with its interval, or why it is unknown."""
        passes = [(restart, run_pass.span.start_ns) for restart in restarts for run_pass in restart.passes]
        windows = result.energy.windows.of_headline() if result.energy and result.energy.windows else []
        boards_j = known_sum(window.total_j for window in windows)
        if not result.energy or not boards_j or len(passes) != len(windows):
            return "the boards' joules are unknown"
        if result.energy.bystander_j:
            return "readings are of the whole server, and other GPUs are in it"
        if result.environment and result.environment.nodes:
            return "readings are of one server, and other nodes held a part of the model"
        joules, scatter_j2, late_j, count = 0.0, 0.0, 0.0, 0
        for (restart, pass_ns), window in zip(passes, windows, strict=True):
            start_ns, length_s = window.start_ns or 0, window.duration_s or 0
            if start_ns - pass_ns < LAG_S * NS_PER_S:
                return f"windows begin less than {LAG_S:g} s after their passes, and readings may be of before"
            found = self._in_window(restart, start_ns, length_s, list(result.used_gpus))
            if isinstance(found, str):
                return f"restart {restart.restart + 1}: {found}"
            watts, boards_late_j = found
            scatter_j2 += _variance_of_mean(watts) * length_s**2
            joules, late_j, count = joules + watts.mean() * length_s, late_j + boards_late_j, count + len(watts)
        # Rounding and lag do the same to every window.
        step_w = max(LEAST_STEP * self.watts.max(), np.diff(np.unique(self.watts)).min())
        rounding_j = step_w * sum(window.duration_s or 0 for window in windows)
        common_j = HALF95 * OF_RECTANGLE * np.hypot(rounding_j, SLOPE * late_j)
        half_j = np.hypot(statistics.t_factor(count - len(windows)) * scatter_j2**0.5, common_j)
        value, half = float(joules / boards_j), float(half_j / boards_j)
        if value - half < 1:
            why = f"readings are {value:.3g} ± {half:.2g} times what the boards drew"
            return f"{why}: are they of one power supply of several, or another machine?"
        said = f"{value:.4g} by {count} readings of the server, whose gain is not in the interval"
        return Factor(value, half, said, "measured")

    def _in_window(
        self, restart: RestartRecord, start_ns: int, length_s: float, uuids: Sequence[str]
    ) -> tuple[Floats, float] | str:
        """Return the readings in a window, watts, or why they do not tell what the host took in it.

        And how many joules more the boards took in it than in what readings show that are `LAG_S` late.
        """
        gpus = [restart.gpus[uuid] for uuid in uuids if uuid in restart.gpus]
        sampled = [series for gpu in gpus if (series := gpu.power_samples or gpu.series.get("power_w"))]
        if restart.started_ns is None or sum(len(series.at_ns) > 1 for series in sampled) < len(uuids):
            return "its record tells no time of day, or no course of the boards' power"
        begin_s = datetime.fromisoformat(restart.started_utc).timestamp() + (start_ns - restart.started_ns) / NS_PER_S
        at_s = self.at_s - begin_s
        inside = (at_s > 0) & (at_s < length_s)
        missing_s = np.diff([0.0, *at_s[inside], length_s]).max()
        if missing_s > MOST_MISSING * length_s or inside.sum() < LEAST_READINGS:
            begin, *file = (f"{datetime.fromtimestamp(at, UTC):%F %T}" for at in (begin_s, *self.at_s[[0, -1]]))
            why = f"no readings for {missing_s:.0f} of {length_s:.0f} s from {begin} UTC on"
            return f"{why}; the file has them from {' to '.join(file)}"
        courses: list[tuple[Floats, Floats]] = []
        for series in sampled:
            of_s = (series.at_ns - start_ns) / NS_PER_S
            courses.append((of_s, np.cumsum(series.value * np.diff(of_s, prepend=of_s[0]))))
        if later_s := _fits_later_by(at_s, self.watts, courses):
            return (
                f"readings follow the boards {later_s:+.0f} s from where their times put them: set its clock, or theirs"
            )
        ends_s = np.array([0.0, length_s]) - np.array([[0.0], [LAG_S]])
        now_j, earlier_j = sum(np.diff(np.interp(ends_s, *course), axis=1)[:, 0] for course in courses)
        return self.watts[inside], float(now_j - earlier_j)


def _variance_of_mean(values: Floats) -> float:
    """Return it from differences of neighbours, since what wanders slowly is in the mean.

    Of blocks of several values the largest counts: a meter's means overlap, and it may tell one reading several times.
    """
    found = []
    for size in (size for size in BLOCKS if size == 1 or size * LEAST_BLOCKS <= len(values)):
        means = values[: len(values) // size * size].reshape(-1, size).mean(axis=1)
        found.append(float(np.mean(np.diff(means) ** 2)) / 2 / len(means))
    return max(found)


def _fits_later_by(at_s: Floats, watts: Floats, courses: Sequence[tuple[Floats, Floats]]) -> float | None:
    """Return by how much later readings follow the boards' course if no lag explains it; None where one may.

    Args:
        courses: Of each board, instants since the window's begin and joules up to them.
    """
    begin_s, end_s = max(of_s[0] for of_s, _ in courses), min(of_s[-1] for of_s, _ in courses)
    alike = np.zeros(len(SHIFTS_S))
    # Few readings are alike by chance: as many must tell as by their own times.
    least = max(LEAST_FOLLOWING, np.count_nonzero((at_s - FOLLOWED_S > begin_s) & (at_s < end_s)))
    for place, shift_s in enumerate(SHIFTS_S):
        ends_s = at_s - shift_s - np.array([[0.0], [FOLLOWED_S]])
        inside = (ends_s[1] > begin_s) & (ends_s[0] < end_s)
        drawn_j = sum(-np.diff([np.interp(side[inside], *course) for side in ends_s], axis=0)[0] for course in courses)
        if inside.sum() >= least and np.ptp(drawn_j) > 0 and np.ptp(watts[inside]) > 0:
            alike[place] = max(np.corrcoef(drawn_j, watts[inside])[0, 1], 0) ** 2
    may_be = (-FOLLOWED_S <= SHIFTS_S) & (SHIFTS_S <= LAG_S)
    unlike = alike[may_be].max() < UNLIKE and alike.max() > ALIKE
    return float(SHIFTS_S[alike.argmax()]) if unlike else None
