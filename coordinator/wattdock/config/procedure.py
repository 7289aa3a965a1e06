"""How often and for how long an experiment is measured, as a person writes it: restarts, lead-in, idle."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeFloat, WithJsonSchema, model_validator

from wattdock.config.lengths import Positive, StrictSettings

# Restarts that are measured ÷ those that the first ones' interval asks for: no restart shrinks what all share.
RESERVE = 1.1
# A percentage, for editors.
PERCENTAGE = {"type": "string", "pattern": r"^[0-9.]+ ?%$"}


def share_of(value: Any) -> Any:
    """Return the share that a percentage stands for, 0.01 for "1 %"; anything else as it is."""
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return value
    try:
        return float(value.strip().removesuffix("%")) / 100
    except ValueError:
        return value


Share = Annotated[
    float,
    BeforeValidator(share_of),
    Field(gt=0, lt=1),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, PERCENTAGE]}),
]


class RepeatsSpec(StrictSettings):
    """`restarts` fresh runners, each with `passes` measured passes.

    Attributes:
        until: Half width of the 95 % interval of J/token to aim at, as a share (0.01) or in percent ("1 %"): the
            interval of the first `restarts` decides once how many are added. Their scatter counts to the end, so that
            five first ones give a narrower interval than three, after as many in all. None adds none.
        most: Restarts at most, where they are added.
    """

    # Fewest restarts with an interval: from two it would reach 12.7 standard errors to each side.
    LEAST_FOR_INTERVAL: ClassVar = 3
    # Half width of the widest interval that may be published.
    MOST_UNCERTAIN: ClassVar = 0.02

    restarts: Positive = 1
    passes: Positive = 2
    until: Share | None = None
    most: Positive = 8

    @model_validator(mode="after")
    def _can_add(self) -> Self:
        if self.until and not self.LEAST_FOR_INTERVAL <= self.restarts <= self.most:
            raise ValueError(
                f"until needs {self.LEAST_FOR_INTERVAL} restarts or more, and most ({self.most}) not below them; "
                f"restarts is {self.restarts}"
            )
        return self

    def wanted(self, expanded: float) -> int:
        """Return how many restarts give an interval of `until`, the first included; at most `most`.

        Args:
            expanded: Half of the 95 % interval after the first `restarts`, relative.

        Source: the first stage alone decides, Stein, Annals of Mathematical Statistics 16 (1945) 243; Cox, Biometrika
        39 (1952) 217.
        """
        if not self.until:
            return self.restarts
        wider = expanded / self.until
        return max(self.restarts, ceil(min(self.most, RESERVE * self.restarts * wider * wider)))

    @property
    def measured(self) -> int:
        """Measured passes of all restarts that are not added."""
        return self.restarts * self.passes


class WarmUpSpec(StrictSettings):
    """What precedes the measured work of every restart.

    Attributes:
        profile: "quick" runs `passes` short passes, which do not count. "lead-in" runs none: each measured pass is one
            continuous run, whose beginning does not count, and which goes on until what counts is long enough.
        passes: Passes of the quick profile.
        lead_in_s, lead_in_lifetimes: Length of the lead-in: seconds, or mean lifetimes of a request if longer.
        window_lifetimes: Least length of what counts, in mean lifetimes of a request; `workload.min_duration_s` is its
            least length in seconds.
    """

    profile: Literal["quick", "lead-in"] = "quick"
    passes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1
    lead_in_s: NonNegativeFloat = 45
    lead_in_lifetimes: NonNegativeFloat = 2
    window_lifetimes: NonNegativeFloat = 5

    def lead_in(self, lifetime_s: float) -> float:
        """Return the length of the lead-in at this mean lifetime of a request, s; 0 under the quick profile."""
        return max(self.lead_in_s, self.lead_in_lifetimes * lifetime_s) if self.profile == "lead-in" else 0.0


class IdleSpec(StrictSettings):
    """Power of the GPUs with the model loaded and without work, metered once after each load; for net energy only.

    Attributes:
        duration_s: 0 does not meter it.
    """

    duration_s: NonNegativeFloat = 0.0
