"""Energy of prefill and decode: energies of short bins regressed on the time of each in them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import hypot
from typing import TYPE_CHECKING

import numpy as np
from pydantic import AliasChoices, Field

from wattdock.analysis.joules import ratio
from wattdock.analysis.occupancy import Instants, NoWindowError, tokens_in
from wattdock.analysis.statistics import Interval
from wattdock.clock import NS_PER_S
from wattdock.metering import Span
from wattdock.values import Stored, known_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord, RestartRecord

    Floats = NDArray[np.float64]
    Nanoseconds = NDArray[np.int64]

# Lag of energy behind the work, fitted: its assumed scatter, the values tried first, and the step of its slope.
LAG_STD_S, LAGS_S, LAG_STEP_S = 0.005, np.arange(-5, 6) * 0.004, 0.001
# Time constants from which the search for a board's response starts, from that of an H200 to that of a sensor's mean of
# a second, and delays ÷ time constant of eight equal parts of what an exponential response spreads.
RESPONSES_S, RESPONSE_DELAYS = (0.01, 0.03, 0.1, 0.3), -np.log(1 - (np.arange(8) + 0.5) / 8)
# Least half of the 95 % interval ÷ the change by the response that fits best: simulated biases are up to 1.2 changes.
RESPONSE95 = 2
# Length, in usual bins, beyond which a bin bridges a gap in the readings and does not count.
GAP_BINS = 3
# Blocks of the bootstrap: errors of neighbouring bins go together, those of seconds do not.
BLOCK_S, MIN_BLOCKS, DRAWS = 1.0, 15, 200
INTERVAL95 = (2.5, 97.5)
# By how much n blocks make an interval too narrow, × (n − 1): Student's t ÷ 1.96, and the bootstrap's √((n − 1) ÷ n).
FEW_BLOCKS = 1.7
PHASES = ("time between rounds", "prefill", "decode")
# Uncertainty of each span's ends (half a 95 % interval, in bins of energy): power may overshoot there, and the runner's
# instants are the CPU's. It is the same for every span.
EDGE95 = 0.1
MAX_RELATIVE_HALF = 0.1
# Largest share of decode's tokens that come during prefills; their energy is counted as prefill's.
MAX_MIXED_SHARE = 0.02


class Phases(Stored):
    """Prefill and decode energy of the measured passes; null with the reason where it cannot be told apart.

    Prefill lasts from a round's submission to the last of its first tokens, decode from there to its last token. The
    boundaries are instants that the runner recorded, without any added synchronisation. Energies of bins, each as long
    as the meter resolves, are regressed on the seconds of prefill, of decode and between rounds in them.

    Attributes:
        prefill_s, decode_s: Time of each over all rounds.
        prefill_ci95_j, decode_ci95_j: Ends of the 95 % interval.
        decode_tokens_in_prefill: Share of decode's tokens that came while other requests' prompts were computed.
    """

    prefill_j: float | None = None
    decode_j: float | None = None
    prefill_ci95_j: Interval | None = None
    decode_ci95_j: Interval | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_j_per_prompt_token: float | None = None
    # Earlier results have the other name.
    decode_j_per_decoded_token: float | None = Field(
        None, validation_alias=AliasChoices("decode_j_per_decoded_token", "decode_j_per_output_token")
    )
    decode_tokens_in_prefill: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Work:
    """Spans in which work was done; a span's work is spread evenly over it.

    Attributes:
        start_ns, end_ns: Shape (n,).
        amounts: Work of each span by kind, shape (n, k).
    """

    start_ns: Nanoseconds
    end_ns: Nanoseconds
    amounts: Floats

    @cached_property
    def _course(self) -> tuple[Nanoseconds, Floats]:
        """Instants at which a span begins or ends, and what is done by then: busy seconds, then each kind of work."""
        length_ns = np.maximum(self.end_ns - self.start_ns, 1)
        at_ns = np.concatenate((self.start_ns, self.start_ns + length_ns))
        order = np.argsort(at_ns, kind="stable")
        at_ns = at_ns[order]
        rates = np.column_stack((np.ones(len(length_ns)), self.amounts / length_ns[:, None]))
        rates = np.cumsum(np.concatenate((rates, -rates))[order], axis=0)
        rates[:, 0] = (rates[:, 0] > 0.5) / NS_PER_S
        done = np.cumsum(rates[:-1] * np.diff(at_ns)[:, None], axis=0)
        return at_ns, np.concatenate((np.zeros((1, rates.shape[1])), done))

    def between(self, edges_ns: Nanoseconds, delays_s: Floats) -> Floats:
        """Return seconds without work and each kind's amount between neighbouring edges, shape (edges − 1, 1 + k).

        Args:
            edges_ns: Edges of the bins of energy, ascending.
            delays_s: By how much equal parts of the energy trail the work.
        """
        at_ns, done = self._course
        shifted_ns = edges_ns - np.rint(delays_s * NS_PER_S).astype(np.int64)[:, None]
        inside = np.diff([np.interp(shifted_ns, at_ns, kind).mean(axis=0) for kind in done.T]).T
        # Rounded, so that no wait is exactly 0.
        inside[:, 0] = np.round(np.diff(edges_ns) / NS_PER_S - inside[:, 0], 8)
        return inside


@dataclass(frozen=True)
class Bins:
    """Energy of one GPU between neighbouring instants: `edges_ns` of shape (m + 1,), `energy_j` of shape (m,)."""

    edges_ns: Nanoseconds
    energy_j: Floats

    @cached_property
    def usual(self) -> Floats:
        """Whether each bin counts, 1 or 0: one that bridges a gap in the meter's readings does not."""
        lengths_ns = np.diff(self.edges_ns)
        return np.where(lengths_ns <= GAP_BINS * np.median(lengths_ns), 1.0, 0.0)


@dataclass(frozen=True)
class MeteredWork:
    """Work of one pass, and the energy of each GPU that did it."""

    work: Work
    gpus: tuple[Bins, ...]

    @property
    def blocks(self) -> int:
        """Number of blocks of about `BLOCK_S` in the pass."""
        return max(1, round(float(np.ptp(self.gpus[0].edges_ns)) / NS_PER_S / BLOCK_S))


@dataclass(frozen=True)
class Costs:
    """Joules per unit of each kind of work over all GPUs, "idle" in watts first; NaN for work of which there was none.

    Attributes:
        values, low, high: Least squares, and its 95 % interval; shape (1 + k,), as `response`.
        bin_s: Length of most bins.
        response: Share by which each changes if power also follows the work exponentially, as fits best.
    """

    values: Floats
    low: Floats
    high: Floats
    bin_s: float
    response: Floats


class NoCostsError(Exception):
    """Why there are no costs of work."""


def metered_work(measured: Measured, restart: RestartRecord, run_pass: PassRecord, work: Work) -> MeteredWork:
    """Return a pass's work beside the energy of the GPUs used.

    Raises:
        NoCostsError: The energy is unknown, or its course is not finer than a second.
    """
    energy = measured.energy_of(restart, run_pass.span)
    if energy.reason:
        raise NoCostsError(energy.reason)
    curves = (measured.energy.curve(restart.gpus[uuid]) for uuid in measured.used)
    gpus = tuple(Bins(*curve.bins(run_pass.span.start_ns, run_pass.span.end_ns)) for curve in curves)
    if not all(len(gpu.energy_j) for gpu in gpus):
        raise NoCostsError("a pass is shorter than what the meter resolves")
    return MeteredWork(work, gpus)


def costs(passes: Sequence[MeteredWork]) -> Costs:
    """Return what each kind of work costs, by non-negative least squares; 95 % by a block bootstrap.

    Each draw of the bootstrap has a lag of its own, by how the fit changes with the lag.

    Args:
        passes: All with the same number of GPUs.

    Raises:
        NoCostsError: The passes take less than `MIN_BLOCKS` blocks.
    """
    if (blocks := sum(part.blocks for part in passes)) < MIN_BLOCKS:
        raise NoCostsError(f"passes last {blocks * BLOCK_S:.0f} s together, {MIN_BLOCKS * BLOCK_S:.0f} s are needed")
    (lag_s, response), energy_j = _lag_and_response(passes), _energy_j(passes)
    work, later, earlier = (_stacked(passes, lag_s + by_s) for by_s in (0, LAG_STEP_S, -LAG_STEP_S))
    kept = work.any(axis=0)
    size = np.sqrt((work[:, kept] ** 2).sum(axis=0))
    scaled, slope = work[:, kept] / size, (later - earlier)[:, kept] / (2 * LAG_STEP_S) / size
    rough_j, *_ = np.linalg.lstsq(scaled, energy_j)
    residual_j2 = float(np.mean((scaled @ rough_j - energy_j) ** 2))
    sums = _block_sums(passes, np.column_stack((scaled, slope @ rough_j, energy_j)))
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), DRAWS)
    drawn = np.concatenate((sums.sum(axis=0)[None], np.tensordot(draws, sums, 1)))
    solved, *others = _solved(drawn, residual_j2)
    around = (np.percentile(others, INTERVAL95, axis=0) - solved) * (1 + FEW_BLOCKS / (len(sums) - 1))
    figures = np.full((3, work.shape[1]), np.nan)
    figures[:, kept] = np.vstack((solved, np.maximum(solved + around, 0))) / size * len(passes[0].gpus)
    bin_s = float(np.median(np.diff(passes[0].gpus[0].edges_ns))) / NS_PER_S
    return Costs(figures[0], figures[1], figures[2], bin_s, response)


def _stacked(passes: Sequence[MeteredWork], lag_s: float, response_s: float = 0.0) -> Floats:
    delays_s = lag_s + response_s * (RESPONSE_DELAYS if response_s else np.zeros(1))
    bins = ((part.work, gpu) for part in passes for gpu in part.gpus)
    return np.concatenate([work.between(gpu.edges_ns, delays_s) * gpu.usual[:, None] for work, gpu in bins])


def _energy_j(passes: Sequence[MeteredWork]) -> Floats:
    return np.concatenate([gpu.energy_j * gpu.usual for part in passes for gpu in part.gpus])


def _fit(passes: Sequence[MeteredWork], lag_s: float, response_s: float = 0.0) -> tuple[float, Floats]:
    """Return the misfit of least squares, with what is assumed of the lag beforehand, and the costs on one GPU."""
    work, energy_j = _stacked(passes, lag_s, response_s), _energy_j(passes)
    size = np.sqrt((work**2).sum(axis=0) + np.finfo(float).tiny)
    scaled_j = np.linalg.lstsq(work / size, energy_j, rcond=None)[0]
    mean_j2 = np.mean((work / size @ scaled_j - energy_j) ** 2) + np.finfo(float).tiny
    return float(len(energy_j) * np.log(mean_j2) + (lag_s / LAG_STD_S) ** 2), scaled_j / size


def _lag_and_response(passes: Sequence[MeteredWork]) -> tuple[float, Floats]:
    """Return the likeliest lag, and by which share each cost changes if power also follows the work exponentially."""
    from scipy.optimize import minimize, minimize_scalar

    def misfit(point_s: ArrayLike) -> float:
        return _fit(passes, *np.atleast_1d(point_s))[0]

    around_s = min(LAGS_S, key=misfit) + LAGS_S[[4, 6]]
    lag_s = float(minimize_scalar(misfit, bounds=around_s, method="bounded", options={"xatol": 1e-4}).x)
    start_s = min(product(LAGS_S[::2], RESPONSES_S), key=misfit)
    simplex_s = start_s + np.array([(0, 0), (LAG_STEP_S, 0), (0, 0.4 * start_s[1])])
    options = {"initial_simplex": simplex_s, "xatol": 5e-4, "fatol": 0.5}
    found = minimize(misfit, start_s, method="Nelder-Mead", bounds=(LAGS_S[[0, -1]], (0, 1)), options=options)
    plain, best = (_fit(passes, *point_s)[1] for point_s in ((lag_s,), min((lag_s,), found.x, key=misfit)))
    return lag_s, np.abs((best - plain) / np.where(plain, plain, 1.0))


def _block_sums(passes: Sequence[MeteredWork], rows: Floats) -> Floats:
    """Return the sums of products of `rows`' columns over blocks of time, all GPUs of a pass together."""
    sums: list[Floats] = []
    start = 0
    for part in passes:
        of_pass = np.zeros((part.blocks, rows.shape[1], rows.shape[1]))
        for gpu in part.gpus:
            block_rows = np.array_split(rows[start : start + len(gpu.energy_j)], part.blocks)
            of_pass += np.stack([block.T @ block for block in block_rows])
            start += len(gpu.energy_j)
        sums.extend(of_pass)
    return np.stack(sums)


def _solved(sums: Floats, residual_j2: float) -> list[Floats]:
    """Return each draw's least squares, from sums of products: work, the lag's slope, energy."""
    from scipy.optimize import nnls

    free = sums[:, -2:-1, -2:-1] + residual_j2 / LAG_STD_S**2
    left = sums[:, :-2] - sums[:, :-2, -2:-1] @ np.linalg.solve(free, sums[:, -2:-1])
    gram, moments = left[:, :, :-2], left[:, :, -1:]
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
    roots = np.linalg.cholesky(gram + ridge)
    targets = np.linalg.solve(roots, moments)[:, :, 0]
    return [nnls(root.T, target)[0] for root, target in zip(roots, targets, strict=True)]


@dataclass(frozen=True)
class _Round:
    """Requests that were submitted together: their prefill and decode, and tokens of decode within the prefill."""

    prefill: Span
    decode: Span
    mixed_tokens: int
    decode_tokens: int


def phases(measured: Measured) -> Phases:
    """Return prefill and decode energy over all passes, or why there is none."""
    passes = [(restart, run_pass, rounds_of(run_pass)) for restart, run_pass in measured.passes]
    if not measured.used or not passes:
        return Phases(reason="no pass was measured" if measured.used else "no GPU was used")
    if not all(rounds for _, _, rounds in passes):
        return Phases(reason="requests overlap: prefill and decode share the engine's steps")
    rounds = [part for _, _, of_pass in passes for part in of_pass]
    prefill_s = sum(part.prefill.duration_s for part in rounds)
    decode_s = sum(part.decode.duration_s for part in rounds)
    decode_tokens = sum(part.decode_tokens for part in rounds)
    mixed = sum(part.mixed_tokens for part in rounds) / max(1, decode_tokens)
    times = {"prefill_s": prefill_s, "decode_s": decode_s, "decode_tokens_in_prefill": mixed}
    try:
        if mixed > MAX_MIXED_SHARE:
            raise NoCostsError(f"{mixed:.1%} of decode's tokens came during prefills (limit {MAX_MIXED_SHARE:.0%})")
        fitted = costs([metered_work(measured, restart, run_pass, _work(part)) for restart, run_pass, part in passes])
        prefill_j, prefill_ci95_j = _phase_joules(fitted, 1, prefill_s, len(rounds))
        decode_j, decode_ci95_j = _phase_joules(fitted, 2, decode_s, len(rounds))
    except NoCostsError as error:
        return Phases(**times, reason=str(error))
    return Phases(
        **times,
        prefill_j=prefill_j,
        decode_j=decode_j,
        prefill_ci95_j=prefill_ci95_j,
        decode_ci95_j=decode_ci95_j,
        prefill_j_per_prompt_token=ratio(prefill_j, known_sum(run_pass.prompt_tokens for _, run_pass, _ in passes)),
        decode_j_per_decoded_token=ratio(decode_j, decode_tokens),
    )


def _work(rounds: Sequence[_Round]) -> Work:
    """Return the seconds of prefill and of decode as work of two kinds."""
    spans = [(span.start_ns, span.end_ns) for part in rounds for span in (part.prefill, part.decode)]
    start_ns, end_ns = np.array(spans, dtype=np.int64).T
    seconds = np.tile(np.eye(2), (len(rounds), 1)) * (end_ns - start_ns)[:, None] / NS_PER_S
    return Work(start_ns, end_ns, seconds)


def _phase_joules(fitted: Costs, phase: int, duration_s: float, rounds: int) -> tuple[float, Interval]:
    """Return joules of a phase and their 95 % interval; refuse what is too uncertain."""
    if np.isnan(fitted.values[phase]):
        raise NoCostsError(f"{PHASES[phase]}: none was reported")
    value_j, low_j, high_j = (float(ends[phase]) * duration_s for ends in (fitted.values, fitted.low, fitted.high))
    edges_j = EDGE95 * fitted.bin_s * rounds * float(fitted.values[phase])
    response_j = RESPONSE95 * float(fitted.response[phase]) * value_j
    below_j, above_j = (max(hypot(part_j, edges_j), response_j) for part_j in (value_j - low_j, high_j - value_j))
    interval = Interval(max(value_j - below_j, 0.0), value_j + above_j)
    if max(below_j, above_j) > MAX_RELATIVE_HALF * value_j:
        late = "; power trails the work by more than a lag" if response_j > MAX_RELATIVE_HALF * value_j else ""
        ends = f"between {interval.low:.0f} and {interval.high:.0f} J (limit ± {MAX_RELATIVE_HALF:.0%}){late}"
        raise NoCostsError(f"{PHASES[phase]} is {value_j:.0f} J, 95 % {ends}")
    return value_j, interval


def rounds_of(run_pass: PassRecord) -> list[_Round]:
    """Return the rounds of a pass; none where a request begins before all earlier ones have finished."""
    try:
        at = Instants.of(run_pass)
    except NoWindowError:
        return []
    rounds = [
        Instants(*columns) for columns in zip(*(np.split(column, at.round_starts()[1:]) for column in at), strict=True)
    ]
    if any(part.submitted[-1] > part.first.min() for part in rounds):
        return []
    found = []
    for part in rounds:
        begin_ns, boundary_ns, end_ns = int(part.submitted[0]), int(part.first.max()), int(part.finished.max())
        gained = np.cumsum(tokens_in(run_pass, [begin_ns, boundary_ns, end_ns]))
        # Each request's first token is prefill's own.
        decoded = np.maximum(0, gained - len(part.first)).tolist()
        found.append(_Round(Span("prefill", begin_ns, boundary_ns), Span("decode", boundary_ns, end_ns), *decoded))
    return found
