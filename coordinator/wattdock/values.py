"""Values that results are made of: a sum with an unknown part is unknown, and what is stored never changes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from wattdock.secrets import withheld, withheld_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import ValidationInfo

T = TypeVar("T")
Number = TypeVar("Number", int, float)
# What joules cover: GPU boards, or the modules of superchips, CPU and memory included.
EnergyBoundary = Literal["gpu_boards", "module"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _when_made(withhold: Callable[[T], T]) -> AfterValidator:
    """Withhold secrets from a new value; a value that is read from a file had none when it was written."""

    def validate(value: T, info: ValidationInfo) -> T:
        return value if info.mode == "json" else withhold(value)

    return AfterValidator(validate)


# What a machine, an engine or an error says, without its secrets.
Said = Annotated[str, _when_made(withheld)]
Settings = Annotated[dict[str, Any], _when_made(withheld_values)]


def all_known(values: Iterable[T | None]) -> list[T] | None:
    """Return the values; None if any value is None."""
    listed = list(values)
    known_values = [value for value in listed if value is not None]
    return known_values if len(known_values) == len(listed) else None


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """Return the sum, 0 of nothing; None if any value is None."""
    summands = all_known(values)
    return None if summands is None else sum(summands)


def known_max(values: Iterable[Number | None]) -> Number | None:
    """Return the largest value; None without values, and where one of them is None."""
    known = all_known(values)
    return max(known) if known else None


def require_64_bits(model: T) -> T:
    """Return a model whose whole numbers a table has room for.

    Raises:
        ValueError: One of them is larger.
    """
    for name, value in vars(model).items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} does not fit into 64 bits")
    return model


class Stored(BaseModel):
    """A part of a stored result: frozen, what another version added is left out; a field may be given by its name."""

    # Where a field may hold anything, infinity would become null without `strings`.
    model_config = ConfigDict(frozen=True, populate_by_name=True, ser_json_inf_nan="strings")

    _require_64_bits = model_validator(mode="after")(require_64_bits)
