"""The verdict on a figure: can it be repeated, was anything seen wrong, is it known well enough. Pure."""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from wattdock.text import significant, singular
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis.budget import Budget

Question = Literal["wrong", "known", "repeat"]
# The three questions, the gravest first, with what a reason says of the figure.
QUESTIONS: dict[Question, str] = {
    "wrong": "something is wrong",
    "known": "not known well enough",
    "repeat": "cannot be repeated",
}
# Characters of the verdict's one line, which is cut within its finding, and fewest of a finding.
LINE, LEAST_FOUND = 120, 50


class Check(Stored):
    """A check of the audit, of doctor or of preflight; "unknown" never counts as passed.

    Attributes:
        status: "fail": the measurement is, or would be, unsound; "warn": a reader must know it.
        figure: What was found.
        threshold: The limit for the figure.
        source: Where the figure or the limit comes from.
        remedy: The next step for the user.
        question: Which question of the verdict it answers; null in doctor and preflight.
    """

    name: str
    status: Literal["pass", "info", "warn", "fail", "unknown"]
    figure: str
    threshold: str | None = None
    source: str | None = None
    remedy: str | None = None
    question: Question | None = None


class Reason(Stored):
    """A check that stands against publication.

    Attributes:
        status: "unknown": it could not be answered.
        found: What it found.
        limit: The limit for that.
        remedy: The setting or command that mends it, or the next step.
    """

    question: Question
    name: str
    status: Literal["fail", "unknown"]
    found: str
    limit: str | None = None
    remedy: str | None = None

    @property
    def said(self) -> str:
        """What it says of the figure."""
        return QUESTIONS[self.question] if self.status == "fail" else "unknown"

    def __str__(self) -> str:
        limit = f" (limit: {self.limit})" if self.limit else ""
        return f"{self.said}: {self.name}: {self.found}{limit}{f' → {self.remedy}' if self.remedy else ''}"


class Audit(Stored):
    """Whether the figure may be published.

    Attributes:
        summary: The verdict in one line: the figure with its interval and warnings, or the gravest thing against it.
        reasons: Everything that stands against it, the gravest first.
    """

    # Checks that reports quote beside the figures that they concern.
    CPUS_ALONE: ClassVar = "CPU use by others"
    GPUS_ALONE: ClassVar = "processes on the GPUs"
    MEMORY_ALONE: ClassVar = "memory of others"
    ARRIVALS_SERVED: ClassVar = "arrivals served"
    WORK_SENT: ClassVar = "work sent against work declared"
    # The check whose failure is why every other one does not pass.
    COMPLETION: ClassVar = "completion"
    METER: ClassVar = "meter"
    UNCERTAINTY: ClassVar = "uncertainty"
    # What the check "software" finds, and the verdict's line tells.
    ONLY_THERE: ClassVar = "only that machine has it"
    # Checks whose failures need no name: "the runner died", "no GPU was used".
    SELF_EVIDENT: ClassVar = (COMPLETION, METER)

    publishable: bool
    summary: str
    reasons: list[Reason] = Field(default_factory=list)
    checks: list[Check]

    @classmethod
    def of(cls, checks: Sequence[Check], budget: Budget | None, unit: str = "output tokens") -> Audit:
        """Return the verdict on a figure with these checks."""
        failed = [check for check in checks if check.status in ("fail", "unknown") and check.question]
        failed = [check for check in failed if check.name == cls.COMPLETION] or failed
        reasons = [
            Reason(
                question=check.question or "wrong",
                name=check.name,
                status="fail" if check.status == "fail" else "unknown",
                found=check.figure,
                limit=check.threshold,
                remedy=check.remedy,
            )
            for check in failed
        ]
        warnings = [check for check in checks if check.status == "warn" and check.question]
        warned = [check.name + f" ({cls.ONLY_THERE})" * (cls.ONLY_THERE in check.figure) for check in warnings]
        # What failed is graver than what is unknown.
        reasons.sort(key=lambda reason: (list(QUESTIONS).index(reason.question), reason.status))
        return cls(
            publishable=not reasons,
            summary=_summary(reasons, warned, budget, unit),
            reasons=reasons,
            checks=list(checks),
        )

    @classmethod
    def disturbed_by(cls, checks: Iterable[Check]) -> str | None:
        """Return which of the checks show that others used the CPUs or the GPUs in a pass, and what they found."""
        alone = (cls.CPUS_ALONE, cls.GPUS_ALONE, cls.MEMORY_ALONE)
        found = (f"{check.name}: {check.figure}" for check in checks if check.name in alone and check.status == "fail")
        return "; ".join(found) or None

    def failure(self, name: str) -> Check | None:
        """Return the check of this name if it failed."""
        return next((check for check in self.checks if check.name == name and check.status == "fail"), None)


def _summary(reasons: Sequence[Reason], warned: Sequence[str], budget: Budget | None, unit: str) -> str:
    """Return the verdict in one line; of what is publishable, with the checks that a reader must know of."""
    interval = f"± {budget.expanded * 100:.2f} %" if budget and budget.expanded is not None else "without an interval"
    figure = (
        f"{significant(budget.energy_per_unit_j)} J/{singular(budget.unit)} {interval}"
        if budget
        else f"no J/{singular(unit)}"
    )
    if not reasons:
        return f"publishable: {figure}{'; with a warning: ' * bool(warned)}{', '.join(warned)}"
    first = reasons[0]
    if first.question == "repeat":
        said = first.said if first.status == "fail" else "unknown whether it can be repeated"
        return f"{figure}; {said}: {', '.join(reason.name for reason in reasons)}"
    name, found = f"{first.said}: {first.name}: ", first.found
    if first.status == "fail" and first.name == Audit.UNCERTAINTY:
        name, found = f"{first.said}: ", f"{interval} (limit {first.limit})"
    elif first.status == "fail" and first.name in Audit.SELF_EVIDENT:
        name = ""
    begin, end = f"not publishable: {name}", f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return begin + shorten(found, max(LEAST_FOUND, LINE - len(begin + end)), placeholder=" …") + end
