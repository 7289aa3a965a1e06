"""How many tokens a prompt or an answer has: a number, or a distribution that each request draws from."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

if TYPE_CHECKING:
    from numpy.random import Generator

# A count that the wire's fields and the tables' columns, of 32 bits, have room for.
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
# The least share of a distribution that its bounds must leave, since draws outside are repeated.
LEAST_KEPT = 0.01
# How many lengths are summed one by one; longer lengths are summed in cells that grow by 0.1 % each.
SINGLE_LENGTHS, CELLS = 1 << 16, 10_000


class Settings(BaseModel):
    """Settings that a person writes, among them some that only an engine knows; `yes` and "8" are no numbers."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="strings")
    # Settings of published studies that are no longer there, each with the value that is left out.
    WITHDRAWN: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_withdrawn(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        return {name: value for name, value in settings.items() if cls.WITHDRAWN.get(name, ...) != value}


class StrictSettings(Settings, extra="forbid"):
    """Settings of which an unknown key is refused."""


class LengthSpec(StrictSettings):
    """Tokens per request, drawn for each.

    Attributes:
        mean, std: In tokens, of the distribution itself; `uniform` has none, only bounds.
        min, max: Draws outside are drawn again.
    """

    distribution: Literal["lognormal", "gamma", "uniform"]
    mean: Annotated[float, Field(ge=1, le=2**31 - 1)] | None = None
    std: Annotated[float, Field(ge=0.1, le=2**31 - 1)] | None = None
    min: Positive = 1
    max: Positive

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min: {self.min} is above max: {self.max}")
        is_uniform = self.distribution == "uniform"
        if {self.mean is None, self.std is None} != {is_uniform}:
            raise ValueError(f"{self.distribution} {'has min and max only' if is_uniform else 'needs mean and std'}")
        if self._moments[0] < LEAST_KEPT:
            raise ValueError(
                f"min: {self.min} and max: {self.max} leave less than {LEAST_KEPT:.0%} of {self.distribution} with "
                f"mean: {self.mean:g} and std: {self.std:g}; bound it where its draws are"
            )
        return self

    @classmethod
    def of(cls, length: int | LengthSpec) -> LengthSpec:
        """Return a length as a distribution: a plain number is one whose bounds are equal."""
        return length if isinstance(length, LengthSpec) else cls(distribution="uniform", min=length, max=length)

    def __str__(self) -> str:
        """Return it in a few words: a plain number, or kind, mean and range."""
        if self.min == self.max:
            return str(self.max)
        return f"{self.distribution} {self.mean_tokens:.0f} ({self.min} to {self.max})"

    @property
    def mean_tokens(self) -> float:
        """Mean of what is drawn, within the bounds."""
        return self._moments[1]

    @property
    def mean_square(self) -> float:
        """Mean of the squares of what is drawn, within the bounds."""
        return self._moments[2]

    @cached_property
    def _moments(self) -> tuple[float, float, float]:
        """The distribution's share within the bounds, and its mean and mean square there, rounded to whole tokens."""
        if self.distribution == "uniform":
            mean = (self.min + self.max) / 2
            return 1.0, mean, mean**2 + ((self.max - self.min + 1) ** 2 - 1) / 12
        import numpy as np
        from scipy.special import gammainc, ndtr

        singles = np.arange(self.min, min(self.max + 1, self.min + SINGLE_LENGTHS) + 1)
        cells = np.round(np.geomspace(singles[-1], self.max + 1, CELLS)) if singles[-1] <= self.max else singles
        edges = np.union1d(singles, cells) - 0.5
        first, second = self._parameters
        below = ndtr((np.log(edges) - first) / second) if self.distribution == "lognormal" else None
        shares = np.diff(gammainc(first, edges / second) if below is None else below)
        kept = float(shares.sum())
        middles = (edges[:-1] + edges[1:]) / 2
        mean, square = (float(shares @ middles**power) / kept if kept else 0.0 for power in (1, 2))
        return kept, mean, square

    @property
    def _parameters(self) -> tuple[float, float]:
        """Location and scale of the logarithm (log-normal), or shape and scale (gamma).

        Source: moments of the log-normal and the gamma distribution, solved for their parameters.
        """
        mean, std = self.mean or 1.0, self.std or 1.0
        if self.distribution == "gamma":
            return (mean / std) ** 2, std**2 / mean
        variance = math.log1p((std / mean) ** 2)
        return math.log(mean) - variance / 2, math.sqrt(variance)

    def draw(self, count: int, generator: Generator) -> list[int]:
        """Return the lengths of `count` requests, in tokens; equal generators give equal lengths."""
        drawn: list[int] = []
        while len(drawn) < count:
            if self.distribution == "uniform":
                draws = generator.integers(self.min, self.max + 1, size=count).astype(float)
            else:
                draws = getattr(generator, self.distribution)(*self._parameters, size=count)
            drawn += [tokens for draw in draws.tolist() if self.min <= (tokens := round(draw)) <= self.max]
        return drawn[:count]


# A plain number is the length of every request. What is a mapping is held against a distribution only.
Length = Annotated[
    Annotated[Positive, Tag("Number")] | Annotated[LengthSpec, Tag("Distribution")],
    Discriminator(lambda value: "Distribution" if isinstance(value, dict | LengthSpec) else "Number"),
]
