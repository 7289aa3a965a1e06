"""What work costs: energies of short bins regressed on the work that was done in them. Pure.

A cost may bend with how many tokens share a step: beside the line, squares are fitted. Knows no result, and no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
# Variance inflation beyond which a kind has no figure: less than a tenth of its root mean square is its own.
MAX_VARIANCE_INFLATION = 100.0
# Variance inflation beyond which a kind may make room for another whose figure is too wide: a third is its own.
MIXED_INFLATION = 10.0
# Misfits nearer than this are alike by chance: twice the logarithm of a likelihood ratio of about 50.
CHANCE = 8.0
# Largest share of a figure that may be another kind's, within its interval; with more, there is no figure.
MAX_FOREIGN_SHARE = 0.1
# Fewest bins that are mostly waits; with fewer, watts between steps are not those of an idle engine.
MIN_WAITING_BINS = 25
MAX_RELATIVE_WIDTH = 1.0

# Kinds of work in a step, waits between steps first: as a reason names them, and as a result does.
KINDS = ("waits", "prompt tokens", "decoded tokens", "steps", "context tokens")
# A prefill is a step that decodes nothing: where steps make room, prompts get their joules.
GIVE_WAY = tuple(KINDS.index(name) for name in ("waits", "context tokens", "decoded tokens", "steps", "prompt tokens"))
# Kinds whose cost may bend with their number in a step.
BENDING = (KINDS.index("prompt tokens"), KINDS.index("decoded tokens"))


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
    """Joules per unit of each kind of work over all GPUs, "idle" in watts first; NaN where `reasons` says why.

    Attributes:
        values, low, high: Least squares, and its 95 % interval; shape (1 + k,).
        reasons: By position, why a kind has no figure.
        closure: Fitted ÷ measured energy of all bins − 1.
        lag_s: By how much energy trails the work.
        bin_s: Length of most bins.
    """

    values: Floats
    low: Floats
    high: Floats
    reasons: dict[int, str]
    closure: float
    bins: int
    lag_s: float
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
    if energy.sources != {"counter"}:
        raise NoCostsError("readings of power do not add up to the energy of short bins")
    curves = (measured.energy.curve(restart.gpus[uuid]) for uuid in measured.used)
    gpus = tuple(Bins(*curve.bins(run_pass.span.start_ns, run_pass.span.end_ns)) for curve in curves)
    if not all(len(gpu.energy_j) for gpu in gpus):
        raise NoCostsError("a pass is shorter than what the meter resolves")
    return MeteredWork(work, gpus)


def costs(passes: Sequence[MeteredWork], names: Sequence[str], *, of_steps: bool = False) -> Costs:
    """Return what each kind of work costs, by non-negative least squares; 95 % by a block bootstrap.

    Args:
        passes: All with the same number of GPUs.
        names: Names of seconds without work and of each kind of work, for reasons.
        of_steps: Whether the kinds are `KINDS`. Then a kind gets no figure where it cannot be told from others, nor do
            those others, and the intervals hold for costs that bend, too.

    Raises:
        NoCostsError: The passes take less than `MIN_BLOCKS` blocks.
    """
    if (blocks := sum(part.blocks for part in passes)) < MIN_BLOCKS:
        raise NoCostsError(f"passes last {blocks * BLOCK_S:.0f} s together, {MIN_BLOCKS * BLOCK_S:.0f} s are needed")
    lag_s = _lag_s(passes)
    work, energy_j = _stacked(passes, lag_s), _energy_j(passes)
    reasons = dict.fromkeys(np.flatnonzero(~work.any(axis=0)).tolist(), "none was reported")
    given_way: list[int] = []
    while True:
        kept = [kind for kind in range(len(names)) if kind not in reasons and kind not in given_way]
        ends, closure = _fit(passes, lag_s, kept)
        if of_steps and 0 in kept and ends[2, 0] > _mean_power_w(passes):
            given_way.append(0)
            continue
        wide = {kind for kind, too_wide in zip(kept, is_wide(ends), strict=True) if too_wide}
        inflation = dict(zip(kept, _variance_inflation(work[:, kept]), strict=True))
        mixed = [kind for kind in kept if of_steps and inflation[kind] > MIXED_INFLATION]
        hopeless = [kind for kind in mixed if inflation[kind] > MAX_VARIANCE_INFLATION]
        least = _least_of(hopeless or mixed, work[:, kept], energy_j, kept)
        if least is None or not (hopeless or {*mixed} - {least} & wide):
            break
        given_way.append(least)
    figures = np.full((3, len(names)), np.nan)
    figures[:, kept] = ends
    if of_steps:
        reasons |= _bend(passes, lag_s, kept, figures)
        reasons |= _share_out(given_way, kept, work, figures, names=names, mean_w=_mean_power_w(passes))
        if np.count_nonzero(work[:, 0] > passes[0].bin_s / 2) < MIN_WAITING_BINS:
            reasons[0] = "waits were shorter than what the meter resolves"
    values, low, high = figures
    return Costs(values, low, high, reasons, closure, len(energy_j), lag_s, passes[0].bin_s)


def _variance_inflation(work: Floats) -> Floats:
    """Return by how much its mix with the other columns inflates the variance of each column's figure."""
    scaled = work / np.sqrt((work**2).sum(axis=0))
    share, directions = np.linalg.eigh(scaled.T @ scaled)
    inflation: Floats = (directions**2 / np.maximum(share, 1e-12)).sum(axis=1)
    return inflation


def _bend(passes: Sequence[MeteredWork], lag_s: float, kept: Sequence[int], figures: Floats) -> dict[int, str]:
    """Let the intervals in `figures` hold what a fit with squares says as well; return why a kind has no figure.

    A kind's square is taken about the mean, over its tokens, of how many share a step, less the mean of the squares. So
    it changes neither the cost of one more token, averaged over the tokens, nor the total: the other coefficients are
    these averages, and a step's is what remains.
    """
    amounts = np.concatenate([part.work.amounts for part in passes])
    centres = (amounts**2).sum(axis=0) / np.maximum(amounts.sum(axis=0), 1)
    squares = (amounts - centres) ** 2
    # With 0 or 1 in every step there is no bend.
    bending = [kind for kind in BENDING if kind in kept and np.ptp(squares[:, kind - 1]) > 1]
    added = [kind - 1 for kind in bending]
    bent = []
    for part in passes:
        of_part = (part.work.amounts - centres) ** 2 - squares.mean(axis=0)
        with_squares = np.column_stack((part.work.amounts, of_part[:, added]))
        bent.append(replace(part, work=replace(part.work, amounts=with_squares)))
    square_of = {kind: 1 + amounts.shape[1] + position for position, kind in enumerate(bending)}
    inflation = _variance_inflation(_stacked(bent, lag_s)[:, [*kept, *square_of.values()]])
    reasons = {}
    for kind in bending:
        if inflation[kept.index(kind)] > MAX_VARIANCE_INFLATION:
            del square_of[kind]
            average = f"{figures[0, kind]:.3g} on average from none to as many as steps had"
            reasons[kind] = f"{average}, nearly always the same number: what one more costs cannot be told"
    line = figures[0, kept]
    (value, low, high), _ = _fit(bent, lag_s, kept, list(square_of.values()))
    held = (low <= line) & (line <= high)
    figures[:, kept] = np.where(held, line, value), np.minimum(low, line), np.maximum(high, line)
    return reasons


def _share_out(
    given_way: Sequence[int], kept: Sequence[int], work: Floats, figures: Floats, *, names: Sequence[str], mean_w: float
) -> dict[int, str]:
    """Widen the intervals in `figures` by what may be of the kinds that gave way; return why kinds have no figure.

    `mean_w` is the mean power of all GPUs, which is more than an idle engine draws.
    """
    mixed_with: dict[int, list[int]] = {kind: [] for kind in given_way}
    highest = figures[2].copy()
    for kind in given_way:
        shares, *_ = np.linalg.lstsq(work[:, kept], work[:, kind])
        # No kind costs less than nothing, so that the others' figures are not smaller than their part of this kind.
        most = min(highest[other] / share for other, share in zip(kept, shares, strict=True) if share > 0)
        figures[1:, kind] = 0, most if kind else min(most, mean_w)
        foreign = shares * figures[2, kind]
        figures[1, kept] = np.maximum(figures[1, kept] - np.maximum(foreign, 0), 0)
        figures[2, kept] += np.maximum(-foreign, 0)
        for other, part in zip(kept, foreign, strict=True):
            if part > MAX_FOREIGN_SHARE * figures[0, other]:
                mixed_with.setdefault(other, []).append(kind)
                mixed_with[kind].append(other)
    reasons = {}
    for kind, others in mixed_with.items():
        listed = " and ".join(names[other] for other in others) or "the others"
        reasons[kind] = f"cannot be told from {listed}: {ends_text(figures[1, kind], figures[2, kind])}"
        figures[0, kind] = np.nan
    return reasons


def _least_of(mixed: Sequence[int], work: Floats, energy_j: Floats, kept: Sequence[int]) -> int | None:
    """Return which of the kinds kept explains least that the others do not; where chance may decide, by `GIVE_WAY`."""
    misfits: dict[int, float] = {}
    for kind in mixed:
        others = np.delete(work, kept.index(kind), axis=1)
        solution, *_ = np.linalg.lstsq(others, energy_j)
        left_j2 = np.sum((others @ solution - energy_j) ** 2) + np.finfo(float).tiny
        misfits[kind] = len(energy_j) * float(np.log(left_j2))
    alike = [kind for kind in misfits if misfits[kind] <= min(misfits.values()) + CHANCE]
    return min(alike, key=GIVE_WAY.index, default=None)


def ends_text(low: float, high: float) -> str:
    """Return where a figure lies that cannot be told; the fit has no figure below 0."""
    return f"between {low:.3g} and {high:.3g}" if high > 0 else "0 in nearly every draw of the fit"


def is_wide(ends: Floats) -> NDArray[np.bool_]:
    """Whether each figure is too uncertain to be one; rows are values and the lower and upper ends of intervals."""
    return np.asarray(ends[2] - ends[1] >= MAX_RELATIVE_WIDTH * ends[0])


def _fit(
    passes: Sequence[MeteredWork], lag_s: float, kept: Sequence[int], free: Sequence[int] = ()
) -> tuple[Floats, float]:
    """Return values and both ends of their intervals for the kinds of work kept, shape (3, len(kept)), and the closure.

    Each draw of the bootstrap has a lag of its own, by how the fit changes with the lag.

    Args:
        free: Columns of work whose coefficients may have either sign and are not asked for.
    """
    columns = [*kept, *free]
    work, later, earlier = (_stacked(passes, lag_s + by_s)[:, columns] for by_s in (0, LAG_STEP_S, -LAG_STEP_S))
    energy_j = _energy_j(passes)
    size = np.sqrt((work**2).sum(axis=0))
    scaled, slope = work / size, (later - earlier) / (2 * LAG_STEP_S) / size
    rough_j, *_ = np.linalg.lstsq(scaled, energy_j)
    residual_j2 = float(np.mean((scaled @ rough_j - energy_j) ** 2))
    sums = _block_sums(passes, np.column_stack((scaled, slope @ rough_j, energy_j)))
    draws = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), DRAWS)
    drawn = np.concatenate((sums.sum(axis=0)[None], np.tensordot(draws, sums, 1)))
    solved, *others = _solved(drawn, len(kept), residual_j2)
    around = (np.percentile(others, INTERVAL95, axis=0) - solved) * (1 + FEW_BLOCKS / (len(sums) - 1))
    ends = np.vstack((solved, np.maximum(solved + around, 0))) / size[: len(kept)] * len(passes[0].gpus)
    return ends, float((scaled[:, : len(kept)] @ solved).sum() / energy_j.sum() - 1)


def _stacked(passes: Sequence[MeteredWork], lag_s: float) -> Floats:
    bins = ((part.work, gpu) for part in passes for gpu in part.gpus)
    return np.concatenate([work.between(gpu.edges_ns, lag_s) * gpu.usual[:, None] for work, gpu in bins])


def _mean_power_w(passes: Sequence[MeteredWork]) -> float:
    gpus = [gpu for part in passes for gpu in part.gpus]
    seconds = sum(float(np.ptp(gpu.edges_ns)) for gpu in gpus) / NS_PER_S
    return sum(float(gpu.energy_j.sum()) for gpu in gpus) / seconds * len(passes[0].gpus)


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


def _solved(sums: Floats, kinds: int, residual_j2: float) -> list[Floats]:
    """Return the non-negative least squares of the first columns from sums of their products, over any of the others.

    Args:
        sums: Sums of each draw, shape (draws, columns, columns): work, free columns, the lag's slope, energy.
        kinds: How many columns are work.
    """
    from scipy.optimize import nnls

    free = sums[:, kinds:-1, kinds:-1].copy()
    free[:, -1, -1] += residual_j2 / LAG_STD_S**2
    left = sums[:, :kinds] - sums[:, :kinds, kinds:-1] @ np.linalg.solve(free, sums[:, kinds:-1])
    gram, moments = left[:, :, :kinds], left[:, :, -1:]
    ridge = 1e-12 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(kinds)
    roots = np.linalg.cholesky(gram + ridge)
    targets = np.linalg.solve(roots, moments)[:, :, 0]
    return [nnls(root.T, target)[0] for root, target in zip(roots, targets, strict=True)]
