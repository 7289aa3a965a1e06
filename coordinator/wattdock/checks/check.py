"""Make a `Check`, and tell the audit which functions make its own. Pure."""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Literal, NamedTuple

from wattdock.analysis import Check
from wattdock.config import ExperimentConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from wattdock.analysis import ExperimentResult
    from wattdock.errors import WattdockError

Status = Literal["pass", "info", "warn", "fail", "unknown"]


def passed(name: str, figure: str) -> Check:
    """Return a finding on something that is as it should be."""
    return Check(name=name, status="pass", figure=figure)


def warned(name: str, figure: str, remedy: str) -> Check:
    """Return a finding that whoever measures must know."""
    return Check(name=name, status="warn", figure=figure, remedy=remedy)


def failed(name: str, figure: str, remedy: str) -> Check:
    """Return a finding that keeps a measurement from being sound."""
    return Check(name=name, status="fail", figure=figure, remedy=remedy)


def refused(name: str, error: WattdockError, remedy: str = "see above") -> Check:
    """Return a failed check for an error, whose message names the next step after a semicolon."""
    figure, _, told = str(error).partition("; ")
    return failed(name, figure, told or remedy)


class Subject:
    """An experiment's result, its settings, and those parts of it that every measured result has."""

    def __init__(self, result: ExperimentResult) -> None:
        """Take a result.

        Raises:
            ValueError: It lacks environment, energy or procedure: nothing was measured.
        """
        if result.environment is None or result.energy is None or result.procedure is None:
            raise ValueError("a result without environment, energy and procedure cannot be audited")
        self.result, self.config = result, ExperimentConfig.model_validate(result.config)
        self.environment, self.energy, self.procedure = result.environment, result.energy, result.procedure


class Outcome(NamedTuple):
    """What a check found; `threshold` and `source` where they depend on the result."""

    status: Status
    figure: str
    threshold: str | None = None
    source: str | None = None


# By module, in the order of their definition.
CHECKS: defaultdict[str, list[Callable[[Subject], Check | None]]] = defaultdict(list)


def check(
    name: str, *, threshold: str | None = None, source: str | None = None, remedy: str | None = None
) -> Callable[[Callable[[Subject], Outcome | None]], Callable[[Subject], Outcome | None]]:
    """Add the decorated function to the audit's checks; None from it says that the check does not apply.

    Args:
        remedy: What to do about it; told unless the check passes.
    """

    def add(find: Callable[[Subject], Outcome | None]) -> Callable[[Subject], Outcome | None]:
        @functools.wraps(find)
        def made(subject: Subject) -> Check | None:
            if (found := find(subject)) is None:
                return None
            return Check(
                name=name,
                status=found.status,
                figure=found.figure,
                threshold=found.threshold or threshold,
                source=found.source or source,
                remedy=remedy if found.status in ("warn", "fail", "unknown") else None,
            )

        CHECKS[find.__module__].append(made)
        return find

    return add


def verdict(*, failed: bool, known: bool = True) -> Status:
    """Return the status of a check whose figure may be unknown, which never passes."""
    return "fail" if failed else "pass" if known else "unknown"
