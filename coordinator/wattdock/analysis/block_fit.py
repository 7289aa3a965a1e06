"""What joules per token of blocks within windows depend on: the mix of work, and time. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Kinds of work in which a window's mix may differ from the declared one.
PROMPTS, CONTEXT, SECONDS = "prompt tokens", "context tokens", "seconds"
# Prior share of joules that grows with each kind, and its standard uncertainty: from none to all, contexts less.
SHARES = {PROMPTS: (0.5, 0.29), CONTEXT: (0.25, 0.25), SECONDS: (0.5, 0.29)}
# Standard uncertainty that the share of prompts has in addition where contexts, which grow with prompts, are not told.
UNTOLD_SHARE = 0.1
# Relative change of J/token per °C, and its standard uncertainty. Source: 60 passes on an H100, 0.054 ± 0.013 % per °C.
# Never fitted: a board's temperature follows its load within seconds, and so does J/token.
TEMPERATURE_COEFFICIENT = (0.0006, 0.0003)
# Fewest blocks of a slope of temperature with a known error: a line passes through any two.
LEAST_BLOCKS = 3
# Largest autocorrelation that is believed, and fewest degrees of freedom of a fit.
MAX_CORRELATION, LEAST_DEGREES_OF_FREEDOM = 0.9, 4


@dataclass(frozen=True)
class Window:
    """One measured window, and its blocks of about 2 s.

    Attributes:
        total_j, output_tokens, timing_j: Of the whole window.
        lead_in_s: From the first request to the window; of a command, the time before it in which its GPUs worked.
        block_s, block_j, block_tokens: Of each block, none without tokens; shape (n,).
        work: Amounts of each kind of work in each block; shape (n,) each.
        block_c: Mean temperature of the GPUs used; NaN where unknown; shape (n,).
        declared: Amount of each kind per output token in the long run; a kind that is missing is not declared.
    """

    total_j: float
    output_tokens: float
    timing_j: float
    lead_in_s: float
    block_s: Floats
    block_j: Floats
    block_tokens: Floats
    block_c: Floats
    work: Mapping[str, Floats] = field(default_factory=dict)
    declared: Mapping[str, float] = field(default_factory=dict)

    def off_by(self, kind: str) -> float:
        """Return (amount per output token) ÷ (declared amount) − 1."""
        return float(self.work[kind].sum() / self.block_tokens.sum()) / self.declared[kind] - 1

    @property
    def mean_c(self) -> float:
        """Mean temperature, by tokens, °C."""
        return float(np.average(self.block_c, weights=self.block_tokens))

    @property
    def knows_warmth(self) -> bool:
        """Whether the slope of temperature is known: read throughout, in enough blocks."""
        return len(self.block_c) >= LEAST_BLOCKS and bool(np.isfinite(self.block_c).all())


class Fit(NamedTuple):
    """What J/token depends on within windows, at one temperature.

    Attributes:
        kinds: Kinds of work that were declared and reported.
        slopes: Relative change of J/token per relative change of each kind; shape (k,).
        covariance: Of the slopes; shape (k, k).
        scatter: Relative standard uncertainty of each window's mean, from its blocks; shape (windows,).
        residuals: Of each window's blocks, relative.
        fitted_kinds: How many slopes the blocks changed; 0 where blocks are too few and the priors stayed.
    """

    kinds: tuple[str, ...]
    slopes: Floats
    covariance: Floats
    scatter: Floats
    residuals: list[Floats]
    fitted_kinds: int


def fitted(windows: Sequence[Window], *, known: bool) -> Fit:
    """Fit J/token of blocks, about each window's own mean, to their mix, from a prior on each slope.

    Blocks weigh as many tokens as they hold, and are reduced to the window's mean temperature where it is `known`. What
    is left scatters with an autocorrelation that widens everything.

    Source: linear regression with normal priors (ridge); effective size of a series, (1 − ρ) ÷ (1 + ρ).
    """
    kinds = tuple(kind for kind in SHARES if all(kind in window.declared and kind in window.work for window in windows))
    priors = np.array([SHARES[kind] for kind in kinds]).reshape(-1, 2)
    tables = []
    for window in windows:
        rate = window.block_j / window.block_tokens
        mean = window.block_j.sum() / window.block_tokens.sum()
        work = [window.work[kind] / window.block_tokens / window.declared[kind] for kind in kinds]
        warmth = TEMPERATURE_COEFFICIENT[0] * (window.block_c - window.mean_c) if known else 0.0
        weight = window.block_tokens / window.block_tokens.mean()
        about = [part - np.average(part, weights=weight) for part in (*work, rate / mean - warmth)]
        tables.append(np.column_stack(about) * np.sqrt(weight)[:, None])
    stacked = np.concatenate(tables)
    slopes, covariance = priors[:, 0], np.diag(priors[:, 1] ** 2)
    degrees_of_freedom = len(stacked) - len(windows) - len(priors)
    known_scatter = degrees_of_freedom >= LEAST_DEGREES_OF_FREEDOM
    # How much scatters, and so how far the prior counts, follows from the slopes: three rounds settle both.
    for _ in range(3 * known_scatter):
        parts = [table[:, -1] - table[:, :-1] @ slopes for table in tables]
        squares = sum(float(part @ part) for part in parts)
        noise = squares / degrees_of_freedom * _inflation(parts) + np.finfo(float).tiny
        covariance = np.linalg.inv(stacked[:, :-1].T @ stacked[:, :-1] / noise + np.diag(priors[:, 1] ** -2.0))
        slopes = covariance @ (stacked[:, :-1].T @ stacked[:, -1] / noise + priors[:, 0] / priors[:, 1] ** 2)
    parts = [table[:, -1] - table[:, :-1] @ slopes for table in tables]
    if PROMPTS in kinds and CONTEXT not in kinds:
        covariance[0, 0] += UNTOLD_SHARE**2
    return Fit(kinds, slopes, covariance, scatter_of(parts), parts, len(kinds) * known_scatter)


def scatter_of(parts: Sequence[Floats]) -> Floats:
    """Return the standard uncertainty of each window's mean, from what its blocks differ from it by; shape (windows,).

    Source: effective size of a series, (1 − ρ) ÷ (1 + ρ).
    """
    inflation = _inflation(parts)
    return np.array([sqrt(float(part @ part) / max(1, len(part) - 1) / len(part) * inflation) for part in parts])


def slopes_of(
    windows: Sequence[Window], shares: Floats, values: Sequence[Floats], fitted_kinds: int = 0
) -> tuple[Floats, float, int]:
    """Return each window's slope of a line through its blocks' values, per second, their mean's error and freedom."""
    slopes, squares, residuals = [], [], []
    for window, of_blocks in zip(windows, values, strict=True):
        middles_s = np.cumsum(window.block_s) - window.block_s / 2
        middles_s -= middles_s.mean()
        squares.append(middles_s @ middles_s)
        slopes.append(middles_s @ of_blocks / squares[-1])
        residuals.append(of_blocks - of_blocks.mean() - slopes[-1] * middles_s)
    freedom = max(1, sum(len(part) - 2 for part in residuals) - fitted_kinds)
    noise = sum(float(part @ part) for part in residuals) / freedom * _inflation(residuals)
    return np.array(slopes), sqrt(noise * float(shares**2 @ (1 / np.array(squares)))), freedom


def _inflation(parts: Sequence[Floats]) -> float:
    """Return by how much the autocorrelation of neighbouring blocks widens the variance of a mean; 1 or more."""
    products = sum(float(part[1:] @ part[:-1]) for part in parts)
    squares = sum(float(part @ part) for part in parts)
    correlation = min(max(products / squares if squares else 0.0, 0.0), MAX_CORRELATION)
    return (1 + correlation) / (1 - correlation)
