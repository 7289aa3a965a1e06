"""How many tokens a prompt or an answer has: a number, or a distribution that each request draws from."""

from __future__ import annotations

import math
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

if TYPE_CHECKING:
    from numpy.random import Generator

# What the wire's fields and the tables' columns hold.
Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
# Draws to judge a distribution by, and the least share of them that its bounds must leave.
SAMPLE, LEAST_KEPT = 10_000, 0.01


class StrictSettings(BaseModel):
    """Settings that a person writes: an unknown key is refused, and so is `yes` or "8" for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, ser_json_inf_nan="strings")


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
        if not is_uniform and len(self._sample) < LEAST_KEPT * SAMPLE:
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
        """Mean of what is drawn, within the bounds; of all but uniform ones to about 1 %."""
        return (self.min + self.max) / 2 if self.distribution == "uniform" else fmean(self._sample)

    @cached_property
    def _sample(self) -> list[int]:
        from numpy.random import default_rng

        return self._candidates(SAMPLE, default_rng(0))

    def draw(self, count: int, generator: Generator) -> list[int]:
        """Return the lengths of `count` requests, in tokens; equal generators give equal lengths."""
        drawn: list[int] = []
        while len(drawn) < count:
            drawn += self._candidates(count, generator)
        return drawn[:count]

    def _candidates(self, count: int, generator: Generator) -> list[int]:
        """Those of `count` draws that lie within the bounds.

        Source: moments of the log-normal and the gamma distribution, solved for their parameters.
        """
        mean, std = self.mean or 0.0, self.std or 0.0
        match self.distribution:
            case "uniform":
                draws = generator.integers(self.min, self.max + 1, size=count).astype(float)
            case "lognormal":
                variance = math.log1p((std / mean) ** 2)
                draws = generator.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), size=count)
            case "gamma":
                draws = generator.gamma((mean / std) ** 2, std**2 / mean, size=count)
        return [tokens for draw in draws.tolist() if self.min <= (tokens := round(draw)) <= self.max]


# A plain number is the length of every request. What is a mapping is held against a distribution only.
Length = Annotated[
    Annotated[Positive, Tag("Number")] | Annotated[LengthSpec, Tag("Distribution")],
    Discriminator(lambda value: "Distribution" if isinstance(value, dict | LengthSpec) else "Number"),
]
