"""Host ÷ boards of a result, from a file with readings of the whole server's watts (IPMI, Redfish, a PDU).

A reading is a constant of its pass, plus what the boards drew in the seconds before, plus a remainder that wanders,
plus scatter; why, and how far this holds: docs/decisions/meters.md.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.linalg import block_diag, solve_triangular

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
    # Of a window: instants and watts of the readings around it, since its begin, shape (n,); what the boards drew in
    # each part of the lag before them, shape (n, parts); and its length, s, the boards' joules in it, and for each part
    # how many more they were if the window lay earlier by the part's begin than if it lay earlier by its end.
    Around = tuple[Floats, Floats, Floats, Floats]

FORM = "give a CSV file of watts and times, in Unix seconds or with their zone, as in 2026-11-29T17:00:00Z"
# What names of the columns hold, in small letters.
COLUMNS = (r"time|date|unix|epoch", r"watt|power|\bw\b")
# Unix times beyond this are milliseconds; a server takes less than so many watts.
MOST_S, MOST_W = 1e11, 1e6
# Share of the times between changes that are shorter than a meter needs for a new reading.
SHORT_RUNS = 0.1
# How far from a window readings count, s; the longest gap between samples of the boards, s; and the longest time
# without a reading, as a share of a window.
MARGIN_S, MAX_GAP_S, MOST_MISSING = 15.0, 1.0, 0.5
# Most readings of a result that are used: time grows with the cube of their number.
MOST_READINGS = 150
# Ends of the parts of a reading's lag, s: it shows what was drawn from 20 s before to 1 s after its time.
LAGS_S = np.array([-1, 0, 1, 2, 3, 4, 6, 8, 11, 15, 20], dtype=np.float64)
# The host's watts for each of the boards' watts, and the standard uncertainty of their sum and of each part of the lag:
# power supplies lose 4 to 12 %, fans follow the boards.
SLOPE, SLOPE_STD, PART_STD = 1.1, 0.15, 0.5
# How late the remainder shows, s; the variance that it gains in a second ÷ the scatter's; and how many standard
# deviations of the scatter are tried, from that of rounding to twice the readings' own. Each is as likely.
LATE_S, WALKS, SCATTERS = 2.0, (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0), 12
# Smallest step of readings, as a share of the largest: a finer one is no meter's.
LEAST_STEP = 1e-4
# Half the 95 % interval, in standard uncertainties.
HALF95 = 1.96
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
        # A meter may be asked several times before it has a new reading; whole seconds are cut off.
        begins = np.flatnonzero(np.diff(watts, prepend=0))
        runs = np.diff(begins, append=len(watts))
        once = (np.arange(len(watts)) - np.repeat(begins, runs)) % int(np.quantile(runs, SHORT_RUNS)) == 0
        return cls((at_s + (at_s % 1 == 0).all() / 2)[once], watts[once])

    def factor(self, result: ExperimentResult, restarts: Iterable[RestartRecord]) -> Factor | str:
        """Return host ÷ boards in a result's windows with its interval, or why it is unknown."""
        passes = [restart for restart in restarts for _ in restart.passes]
        windows = result.energy.windows.of_headline() if result.energy and result.energy.windows else []
        boards_j = known_sum(window.total_j for window in windows)
        if not result.energy or not boards_j or len(passes) != len(windows):
            return "the boards' joules are unknown"
        if result.energy.bystander_j:
            return "readings are of the whole server, and other GPUs are in it"
        if result.environment and result.environment.nodes:
            return "readings are of one server, and other nodes held a part of the model"
        around: list[Around] = []
        for restart, window in zip(passes, windows, strict=True):
            found = self._around(restart, window.start_ns or 0, window.duration_s or 0, list(result.used_gpus))
            if isinstance(found, str):
                return f"restart {restart.restart + 1}: {found}"
            around.append(found)
        step_w = max(LEAST_STEP * self.watts.max(), np.diff(np.unique(self.watts)).min())
        value, std = (joules / boards_j for joules in host_joules(around, step_w))
        if value - HALF95 * std < 1:
            why = f"readings are {value:.3g} ± {HALF95 * std:.2g} times what the boards drew"
            return f"{why}: are they of one power supply of several, or another machine?"
        count = sum(len(at_s) for at_s, *_ in around)
        said = f"{value:.4g} by {count} readings of the server, whose gain is not in the interval"
        return Factor(value, HALF95 * std, said, "measured")

    def _around(self, restart: RestartRecord, start_ns: int, length_s: float, uuids: Sequence[str]) -> Around | str:
        """Return the readings around a window, or why they do not tell what the host took in it."""
        gpus = [restart.gpus[uuid] for uuid in uuids if uuid in restart.gpus]
        sampled = [series for gpu in gpus if (series := gpu.power_samples or gpu.series.get("power_w"))]
        if restart.started_ns is None or sum(len(series.at_ns) > 1 for series in sampled) < len(uuids):
            return "its record tells no time of day, or no course of the boards' power"
        begin_s = datetime.fromisoformat(restart.started_utc).timestamp() + (start_ns - restart.started_ns) / NS_PER_S
        at_s, ends_s = self.at_s - begin_s, np.subtract.outer([0.0, length_s], [0.0, *LAGS_S])
        lags_s, near = at_s[:, None] - LAGS_S, (at_s > -MARGIN_S) & (at_s < length_s + MARGIN_S)
        before_j, ends_j = np.zeros(lags_s.shape), np.zeros(ends_s.shape)
        courses: list[tuple[Floats, Floats]] = []
        for series in sampled:
            of_s = (series.at_ns - start_ns) / NS_PER_S
            apart_s = np.diff(of_s, prepend=of_s[0])
            drawn_j, gaps = np.cumsum(series.value * apart_s), np.cumsum(apart_s > MAX_GAP_S)
            courses.append((of_s, drawn_j))
            before_j, ends_j = before_j + np.interp(lags_s, of_s, drawn_j), ends_j + np.interp(ends_s, of_s, drawn_j)
            near &= np.ptp(np.interp(lags_s, of_s, gaps, left=-1, right=-1), axis=1) == 0
        missing_s = np.diff(np.clip([0.0, *at_s[near], length_s], 0, length_s)).max()
        if missing_s > MOST_MISSING * length_s:
            begin, *file = (f"{datetime.fromtimestamp(at, UTC):%F %T}" for at in (begin_s, *self.at_s[[0, -1]]))
            why = f"no readings for {missing_s:.0f} of {length_s:.0f} s from {begin} UTC on"
            return f"{why}; the file has them from {' to '.join(file)}"
        if later_s := _fits_later_by(at_s, self.watts, courses):
            return (
                f"readings follow the boards {later_s:+.0f} s from where their times put them: set its clock, or theirs"
            )
        boards_j, *late_j = np.diff(ends_j, axis=0)[0]
        boards_w = -np.diff(before_j[near]) / np.diff(LAGS_S)
        return at_s[near], self.watts[near], boards_w, np.array([length_s, boards_j, *-np.diff(late_j)])


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
    may_be = (LAGS_S[0] - FOLLOWED_S <= SHIFTS_S) & (LAGS_S[-1] >= SHIFTS_S)
    unlike = alike[may_be].max() < UNLIKE and alike.max() > ALIKE
    return float(SHIFTS_S[alike.argmax()]) if unlike else None


def host_joules(around: Sequence[Around], step_w: float) -> tuple[float, float]:
    """Return the server's joules in all windows together, and their standard uncertainty.

    Args:
        step_w: Smallest difference between two readings.

    Source: best linear prediction, Goldberger, Journal of the American Statistical Association 57 (1962) 369, averaged
    over what scatter and remainder may be by their likelihood; Widrow and Kollár, Quantization Noise, 2008: rounding is
    noise where readings vary by more than half a step.
    """
    count, every = len(around), 1 + sum(len(part[0]) for part in around) // MOST_READINGS
    at_s, watts, boards_w = (np.concatenate([part[k][::every] for part in around]) for k in range(3))
    (length_s, boards_j, *later_j), rounding_w2 = np.array([part[3] for part in around]).T, step_w**2 / 12
    window = np.repeat(np.arange(count), [len(part[0][::every]) for part in around])
    # Coefficients: a constant for each window, and the boards' in each part of the lag. Asked: the joules, and how many
    # more they were if each part of the lag were its begin instead of its end; which it is is told to a triangle of
    # twice that width.
    rows, of_window_s = np.hstack((np.eye(count)[window], boards_w)), length_s[window]
    asked = np.append(length_s, np.full(len(LAGS_S) - 1, boards_j.sum()))
    asked = np.column_stack((asked, np.append(0 * length_s, np.sum(later_j, axis=1))))
    slopes = np.linalg.inv(np.eye(len(LAGS_S) - 1) / PART_STD**2 + 1 / SLOPE_STD**2)
    spread = block_diag(np.eye(count) * watts.max() ** 2, slopes)
    expected = spread[:, count:].sum(axis=1) * SLOPE / SLOPE_STD**2
    fixed = rows @ spread @ np.hstack((rows.T, asked))
    # Covariances of a random walk that begins before the readings of a window, and of its integral over the window.
    since_s, found = at_s + MARGIN_S, []
    walked = np.minimum(since_s[:, None], since_s) * (window[:, None] == window)
    shared = np.minimum(MARGIN_S + LATE_S + np.linspace(0, 1, 101)[:, None] * of_window_s, since_s).mean(axis=0)
    walk = (MARGIN_S + LATE_S + length_s / 3) @ length_s**2
    for scatter_w2, of in product(np.geomspace(rounding_w2, 4 * watts.var() + rounding_w2, SCATTERS), WALKS):
        lower = np.linalg.cholesky(fixed[:, :-2] + scatter_w2 * (np.eye(len(watts)) + of * walked))
        known = np.column_stack(
            (watts - rows @ expected, fixed[:, -2] + scatter_w2 * of * shared * of_window_s, fixed[:, -1])
        )
        left, joules, late_j = solve_triangular(lower, known, lower=True).T
        # Every standard deviation of the scatter is as likely as another.
        likely = np.log(scatter_w2) / 2 - left @ left / 2 - np.log(np.diag(lower)).sum()
        found.append((likely, scatter_w2 * of * walk - joules @ joules, joules @ left, late_j @ left))
    likely, variance_j2, joules, late_j = np.array(found).T
    share = np.exp(likely - likely.max()) / np.exp(likely - likely.max()).sum()
    mean_j, late_j = expected @ asked + share @ np.column_stack((joules, late_j))
    spread_j2 = share @ (variance_j2 + (expected @ asked[:, 0] + joules - mean_j) ** 2)
    inside = (at_s > 0) & (at_s < of_window_s)
    varied_w2 = np.append(np.diff(watts)[inside[1:] & inside[:-1]], 0.0).var() / 2
    rounded_j2 = rounding_w2 * length_s @ length_s * np.exp(-4 * np.pi**2 * varied_w2 / step_w**2)
    return mean_j, float(np.sqrt(asked[:, 0] @ spread @ asked[:, 0] + spread_j2 + late_j**2 / 6 + rounded_j2))
