"""What work costs: energies of short bins regressed on the work that was done in them. Pure.

Knows no result, and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from wattdock.clock import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wattdock.analysis.measured import Measured
    from wattdock.records import PassRecord, RestartRecord

    Floats = NDArray[np.float64]
    Instants = NDArray[np.int64]

# Lag of energy behind the work, fitted: its assumed scatter, its bound, and the steps of search and slope.
LAG_STD_S, MAX_LAG_S, LAG_GRID_S, LAG_STEP_S = 0.005, 0.02, 0.004, 0.001
# Length, in usual bins, beyond which a bin bridges a gap in the readings and does not count.
GAP_BINS = 3
# Blocks of the bootstrap: errors of neighbouring bins go together, those of seconds do not.
BLOCK_S, MIN_BLOCKS, DRAWS = 1.0, 15, 200
INTERVAL95 = (2.5, 97.5)
# By how much n blocks make an interval too narrow, × (n − 1): Student's t ÷ 1.96, and the bootstrap's √((n − 1) ÷ n).
FEW_BLOCKS = 1.7


@dataclass(frozen=True)
class Work:
    """Spans in which work was done; a span's work is spread evenly over it.

    Attributes:
        start_ns, end_ns: Shape (n,).
        amounts: Work of each span by kind, shape (n, k).
    """

    start_ns: Instants
    end_ns: Instants
    amounts: Floats

    @cached_property
    def _course(self) -> tuple[Instants, Floats]:
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

    def between(self, edges_ns: Instants, lag_s: float) -> Floats:
        """Return seconds without work and each kind's amount between neighbouring edges, shape (edges − 1, 1 + k).

        Args:
            edges_ns: Edges of the bins of energy, ascending.
            lag_s: By how much energy trails the work.
        """
        at_ns, done = self._course
        shifted_ns = edges_ns - round(lag_s * NS_PER_S)
        inside = np.diff(np.column_stack([np.interp(shifted_ns, at_ns, kind) for kind in done.T]), axis=0)
        # Rounded, so that no wait is exactly 0.
        inside[:, 0] = np.round(np.diff(edges_ns) / NS_PER_S - inside[:, 0], 8)
        return inside


@dataclass(frozen=True)
class Bins:
    """Energy of one GPU between neighbouring instants: `edges_ns` of shape (m + 1,), `energy_j` of shape (m,)."""

    edges_ns: Instants
    energy_j: Floats

    @property
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

    @property
    def bin_s(self) -> float:
        """Length of most bins, s."""
        return float(np.median(np.diff(self.gpus[0].edges_ns))) / NS_PER_S


@dataclass(frozen=True)
class Costs:
    """Joules per unit of each kind of work over all GPUs, "idle" in watts first; NaN for work of which there was none.

    Attributes:
        values, low, high: Least squares, and its 95 % interval; shape (1 + k,).
        bin_s: Length of most bins.
    """

    values: Floats
    low: Floats
    high: Floats
    bin_s: float


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
    lag_s, energy_j = _lag_s(passes), _energy_j(passes)
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
    values, low, high = figures
    return Costs(values, low, high, passes[0].bin_s)


def _stacked(passes: Sequence[MeteredWork], lag_s: float) -> Floats:
    bins = ((part.work, gpu) for part in passes for gpu in part.gpus)
    return np.concatenate([work.between(gpu.edges_ns, lag_s) * gpu.usual[:, None] for work, gpu in bins])


def _energy_j(passes: Sequence[MeteredWork]) -> Floats:
    return np.concatenate([gpu.energy_j * gpu.usual for part in passes for gpu in part.gpus])


def _lag_s(passes: Sequence[MeteredWork]) -> float:
    """Return the likeliest lag: least squares, with what is assumed of the lag beforehand."""
    from scipy.optimize import minimize_scalar

    energy_j = _energy_j(passes)

    def misfit(lag_s: float) -> float:
        work = _stacked(passes, lag_s)
        work = work / np.sqrt((work**2).sum(axis=0) + np.finfo(float).tiny)
        fitted = work @ np.linalg.lstsq(work, energy_j, rcond=None)[0]
        return float(
            len(energy_j) * np.log(np.mean((fitted - energy_j) ** 2) + np.finfo(float).tiny) + (lag_s / LAG_STD_S) ** 2
        )

    grid_s = np.arange(-MAX_LAG_S, MAX_LAG_S + LAG_GRID_S / 2, LAG_GRID_S)
    middle_s = float(grid_s[np.argmin([misfit(lag_s) for lag_s in grid_s])])
    around_s = (middle_s - LAG_GRID_S, middle_s + LAG_GRID_S)
    return float(minimize_scalar(misfit, bounds=around_s, method="bounded", options={"xatol": 1e-4}).x)


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
    """Return the non-negative least squares of the work, over any of the lag's slope, from sums of products.

    Args:
        sums: Sums of each draw, shape (draws, columns, columns): work, the lag's slope, energy.
    """
    from scipy.optimize import nnls

    free = sums[:, -2:-1, -2:-1] + residual_j2 / LAG_STD_S**2
    left = sums[:, :-2] - sums[:, :-2, -2:-1] @ np.linalg.solve(free, sums[:, -2:-1])
    gram, moments = left[:, :, :-2], left[:, :, -1:]
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(gram.shape[1])
    roots = np.linalg.cholesky(gram + ridge)
    targets = np.linalg.solve(roots, moments)[:, :, 0]
    return [nnls(root.T, target)[0] for root, target in zip(roots, targets, strict=True)]
