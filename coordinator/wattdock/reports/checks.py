"""Checks for a terminal, or as JSON: of an audit, of doctor, of preflight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.reports.terminal import console
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.analysis import Check

SCHEMA_VERSION = 1
STYLES = {"pass": "green", "info": "cyan", "warn": "yellow", "fail": "bold red", "unknown": "bold magenta"}
INDENT = " " * 8


def print_checks(checks: Iterable[Check], *, as_json: bool) -> bool:
    """Print each check as it comes, then the verdict; return whether a measurement would be sound."""
    out = console(highlight=False, soft_wrap=True)
    seen = []
    for check in checks:
        seen.append(check)
        if not as_json:
            out.print(check_line(check))
    sound = all(check.status not in ("fail", "unknown") for check in seen)
    if as_json:
        plain = [check.model_dump(mode="json") for check in seen]
        print_json({"schema_version": SCHEMA_VERSION, "sound": sound, "checks": plain})
    else:
        out.print(_verdict(seen))
    return sound


def check_line(check: Check) -> Text:
    """Return one check: status, name, figure and limit, and below them what to do."""
    limit = f" (limit: {check.threshold})" if check.threshold else ""
    line = Text.assemble((f"{check.status:<8}", STYLES[check.status]), f"{check.name}: {check.figure}{limit}")
    if check.remedy:
        line.append(f"\n{INDENT}→ {check.remedy}", style="dim")
    return line


def _verdict(checks: Sequence[Check]) -> str:
    failed = [check.name for check in checks if check.status in ("fail", "unknown")]
    warned = sum(check.status == "warn" for check in checks)
    if failed:
        return f"a measurement here would not be sound: {', '.join(failed)}"
    return "a measurement here would be sound" + (f"; {pluralize(warned, 'warning')} to know about" if warned else "")
