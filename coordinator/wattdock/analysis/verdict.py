"""The verdict on a figure: checks that failed or are unknown become reasons, one for each cause. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from wattdock.text import pluralize
from wattdock.values import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Group = Literal["wrong", "unverified", "irreproducible"]
# Groups of reasons, the worst first, with what each says of the figure.
GROUPS: dict[Group, str] = {
    "wrong": "figure is wrong",
    "unverified": "figure is not verified",
    "irreproducible": "figure cannot be reproduced",
}
SETTINGS = "settings"


class Check(Stored):
    """A check of the audit, of doctor or of preflight; "unknown" never counts as passed.

    Attributes:
        status: "fail": the measurement is, or would be, unsound; "warn": a reader must know it.
        figure: What was found.
        threshold: The limit for the figure.
        source: Where the figure or the limit comes from.
        remedy: The next step for the user.
        group: What a failure says of the figure; not stored, as the three below.
        causes: Names of checks: where one of them does not pass, it is why this one does not; "completion" is for all.
        needs: Names of checks without which this one is unknown.
        setting: Why this one does not pass, where it is looser than publication needs.
    """

    name: str
    status: Literal["pass", "info", "warn", "fail", "unknown"]
    figure: str
    threshold: str | None = None
    source: str | None = None
    remedy: str | None = None
    group: Group = Field(default="unverified", exclude=True)
    causes: tuple[str, ...] = Field(default=(), exclude=True)
    needs: tuple[str, ...] = Field(default=(), exclude=True)
    setting: str | None = Field(default=None, exclude=True)


class Reason(Stored):
    """A cause for which a figure may not be published.

    Attributes:
        group: What it says of the figure; the worst of what follows from it, too.
        name: The check that found it, or "settings".
        found: What it found.
        limit: The limit for that.
        remedy: The setting or command that mends it, or the next step.
        follows: Names of the other checks that failed or are unknown because of it.
    """

    group: Group
    name: str
    found: str
    limit: str | None = None
    remedy: str | None = None
    follows: list[str] = Field(default_factory=list)

    def __str__(self) -> str:
        count, limit = len(self.follows), f" (limit: {self.limit})" if self.limit else ""
        follows = f"; {pluralize(count, 'more check')} depend{'s' * (count == 1)} on it" if count else ""
        remedy = f" → {self.remedy}" if self.remedy else ""
        return f"{GROUPS[self.group]}: {self.name}: {self.found}{limit}{follows}{remedy}"


class Audit(Stored):
    """Whether the figure may be published, and why not: the worst first."""

    # Checks that reports quote beside the figures that they concern.
    CPUS_ALONE: ClassVar = "CPU use by others"
    GPUS_ALONE: ClassVar = "processes on the GPUs"
    MEMORY_ALONE: ClassVar = "memory of others in the passes"
    ARRIVALS_SERVED: ClassVar = "arrivals served"
    WORK_SENT: ClassVar = "work sent against work declared"
    # The check whose failure is why every other one does not pass.
    COMPLETION: ClassVar = "completion"

    publishable: bool
    reasons: list[Reason]
    checks: list[Check]

    @classmethod
    def of(cls, checks: Sequence[Check], loose: Mapping[str, str]) -> Audit:
        """Return the verdict on a figure with these checks.

        Args:
            loose: By setting that is looser than publication needs, what it is and what is needed.
        """
        failed = {check.name: check for check in checks if check.status in ("fail", "unknown")}
        causes: dict[str, list[Check]] = {}
        for check in failed.values():
            causes.setdefault(_cause(check, failed, loose), []).append(check)
        reasons = [_reason(cause, found, loose) for cause, found in causes.items()]
        places = list(GROUPS)
        reasons.sort(key=lambda reason: (places.index(reason.group), -len(reason.follows)))
        return cls(publishable=not reasons, reasons=reasons, checks=list(checks))

    @classmethod
    def disturbed_by(cls, checks: Iterable[Check]) -> str | None:
        """Return which of the checks show that others used the CPUs or the GPUs in a pass, and what they found."""
        alone = (cls.CPUS_ALONE, cls.GPUS_ALONE, cls.MEMORY_ALONE)
        found = (f"{check.name}: {check.figure}" for check in checks if check.name in alone and check.status == "fail")
        return "; ".join(found) or None

    def failure(self, name: str) -> Check | None:
        """Return the check of this name if it failed."""
        return next((check for check in self.checks if check.name == name and check.status == "fail"), None)


def _cause(check: Check, failed: Mapping[str, Check], loose: Mapping[str, str]) -> str:
    """Return the name of the check that a failed one follows from in the end, or "settings"; else its own."""
    needs = check.needs if check.status == "unknown" else ()
    names = [name for name in (*needs, *check.causes, Audit.COMPLETION) if name in failed and name != check.name]
    if names:
        return _cause(failed[names[0]], failed, loose)
    return SETTINGS if check.setting in loose else check.name


def _reason(cause: str, checks: Iterable[Check], loose: Mapping[str, str]) -> Reason:
    by_name = {check.name: check for check in checks}
    if root := by_name.pop(cause, None):
        found, limit, remedy, own = root.figure, root.threshold, root.remedy, _group(root)
    else:
        settings = {check.setting for check in by_name.values()}
        found = f"those of a first try: {', '.join(text for name, text in loose.items() if name in settings)}"
        limit, remedy, own = None, "wattdock run --publishable FILE; FILE is a study with these settings", "unverified"
    group = min([own, *map(_group, by_name.values())], key=list(GROUPS).index)
    # What makes the figure worse than its cause alone would is not left to be looked up.
    worse = [f"; {check.name}: {check.figure}" for check in by_name.values() if _group(check) == group != own]
    return Reason(
        group=group, name=cause, found=found + "".join(worse), limit=limit, remedy=remedy, follows=list(by_name)
    )


def _group(check: Check) -> Group:
    return check.group if check.status == "fail" else "unverified"
