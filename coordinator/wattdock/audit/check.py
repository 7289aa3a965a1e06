"""The one way to write a check: a function of its subject in a `Checklist`, with a name, limit, source and remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

from wattdock.analysis import Check
from wattdock.errors import WattdockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Unpack

    from wattdock.analysis import ExperimentResult, Question
    from wattdock.records import RestartRecord

Status = Literal["pass", "info", "warn", "fail", "unknown"]
S = TypeVar("S")


class Declared(TypedDict, total=False):
    """What is declared of a check.

    Attributes:
        threshold: The limit that the figure is held against.
        source: Where the figure, or the limit, comes from.
        remedy: What to do unless the check passes.
        question: Which question of the verdict it answers.
    """

    threshold: str
    source: str
    remedy: str
    question: Question


class Outcome(NamedTuple):
    """What a check saw; threshold, source and remedy where they depend on the subject."""

    status: Status
    figure: str
    threshold: str | None = None
    source: str | None = None
    remedy: str | None = None

    @classmethod
    def of_error(cls, error: WattdockError, remedy: str | None = None) -> Outcome:
        """Return the failure that an error stands for."""
        return cls("fail", error.what, remedy=error.remedy or remedy)

    def named(self, name: str, **declared: Unpack[Declared]) -> Check:
        """Return the outcome as a `Check`; the remedy stands in a check that someone must act on."""
        own = {"threshold": self.threshold, "source": self.source, "remedy": self.remedy}
        fields: dict[str, Any] = {**declared, **{key: text for key, text in own.items() if text is not None}}
        if self.status in ("pass", "info"):
            fields["remedy"] = None
        return Check(name=name, status=self.status, figure=self.figure, **fields)


Examine = TypeVar("Examine", bound="Callable[..., Outcome | None]")


class Checklist(Generic[S]):
    """Checks on one kind of subject, in the order in which they are written."""

    def __init__(self) -> None:
        self._checks: list[tuple[Callable[[S], Outcome | None], str, Declared]] = []

    def check(self, name: str, **declared: Unpack[Declared]) -> Callable[[Examine], Examine]:
        """Add the decorated function as the check `name`, a noun; it returns None where the check does not apply."""

        def add(examine: Examine) -> Examine:
            self._checks.append((examine, name, declared))
            return examine

        return add

    def run(self, subject: S, *, prefix: str = "") -> Iterator[Check]:
        """Yield each check that applies; an error that a check raises is its failure.

        Args:
            prefix: What names begin with: "GPU 0 ".
        """
        for examine, name, declared in self._checks:
            try:
                outcome = examine(subject)
            except WattdockError as error:
                outcome = Outcome.of_error(error)
            if outcome:
                yield outcome.named(prefix + name, **declared)


class AuditInput:
    """An experiment's result, its settings, those parts of it that every measured result has, and its restarts."""

    def __init__(self, result: ExperimentResult, restarts: Sequence[RestartRecord] = ()) -> None:
        assert result.environment is not None
        assert result.energy is not None
        assert result.procedure is not None
        self.result, self.config, self.restarts = result, result.config, restarts
        self.environment, self.energy, self.procedure = result.environment, result.energy, result.procedure


def verdict(*, failed: bool, known: bool = True) -> Status:
    """Return the status of a check whose figure may be unknown, which never passes."""
    return "fail" if failed else "pass" if known else "unknown"
