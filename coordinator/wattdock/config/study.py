"""A study as a person writes it: defaults, a sweep over any setting, explicit experiments, and what to leave out.

The shape of the file only: `sweep` expands it, `load` checks each point.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from wattdock.config.written import Written

# Beyond this nothing that can be swept makes sense, and floats lose whole numbers.
LIMIT = 2**53
Number = (
    Annotated[int, Field(strict=True, ge=-LIMIT, le=LIMIT)]
    | Annotated[float, Field(strict=True, ge=-LIMIT, le=LIMIT, allow_inf_nan=False)]
)
Settings = dict[str, Any]
MAX_POINTS = 20_000


class LinearRange(Written):
    """`{from: 0, to: 10, step: 5}`: 0, 5, 10; whole numbers stay whole."""

    from_: Number = Field(alias="from")
    to: Number
    step: Number


class PowerRange(Written):
    """`{from: 1, to: 512, powers_of: 2}`: every power of 2 from 1 to 512."""

    from_: Annotated[Number, Field(gt=0, alias="from")]
    to: Annotated[Number, Field(gt=0)]
    powers_of: Annotated[int, Field(strict=True, ge=2)]


class LogRange(Written):
    """`{from: 0.1, to: 10, log: 5}`: 5 values, each the same factor above the one before.

    Between whole numbers they are rounded to whole numbers.
    """

    from_: Annotated[Number, Field(gt=0, alias="from")]
    to: Annotated[Number, Field(gt=0)]
    log: Annotated[int, Field(strict=True, ge=2, le=MAX_POINTS)]


class StudyFile(Written):
    """A file with `experiments:` or `sweep:`; a file without either is one experiment.

    Attributes:
        name: How the study is called; the file's name unless given.
        order: "shuffled" draws a new order of load groups, and of experiments in them, for each restart; "written"
            keeps the file's.
        seed: Of the shuffles.
        stop_after_failures: Attempts in a row that fail at the same stage in the same way before the rest of that
            backend is given up; null never does.
        defaults: Laid under each experiment.
        sweep: Setting, written with dots → values or a range; every combination is an experiment. `zip:` holds
            settings whose values go together.
        exclude: Settings of points to leave out; a point goes if it has all the settings of one entry. A list stands
            for any of its values.
        experiments: Each laid over the defaults; not swept.
    """

    name: str = ""
    order: Literal["shuffled", "written"] = "shuffled"
    seed: Annotated[int, Field(ge=0)] = 0
    stop_after_failures: Annotated[int, Field(ge=1)] | None = 3
    defaults: Settings = Field(default_factory=dict)
    sweep: Settings = Field(default_factory=dict)
    exclude: list[Settings] = Field(default_factory=list)
    experiments: list[Settings] = Field(default_factory=list)


STUDY_MARKS = {"experiments", "sweep", "defaults"}


def is_study(data: Settings) -> bool:
    """Whether a file's settings are a study's, not one experiment's."""
    return not STUDY_MARKS.isdisjoint(data)
