"""A diagnosis as lines for a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from wattdock.reports.terminal import console
from wattdock.text import pluralize, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wattdock.checks import Finding

SCHEMA_VERSION = 1
STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
INDENT = " " * 5


def show_findings(findings: Iterable[Finding], *, as_json: bool) -> bool:
    """Print each finding as it comes, then the verdict; return whether a measurement would be sound."""
    out = console(highlight=False, soft_wrap=True)
    seen = []
    for one in findings:
        seen.append(one)
        if not as_json:
            out.print(finding_line(one))
    sound = all(one.status != "fail" for one in seen)
    if as_json:
        answer = {"schema_version": SCHEMA_VERSION, "sound": sound, "findings": [asdict(one) for one in seen]}
        print_json(answer)
    else:
        out.print(verdict(seen))
    return sound


def finding_line(one: Finding) -> Text:
    """Return one finding: status, name, what was seen, and below it what to do."""
    line = Text.assemble((f"{one.status:<5}", STYLES[one.status]), f"{one.name}: {one.value}")
    if one.advice:
        line.append(f"\n{INDENT}→ {one.advice}", style="dim")
    return line


def verdict(findings: Sequence[Finding]) -> str:
    """Return in one line whether a measurement would be sound."""
    failed = [one.name for one in findings if one.status == "fail"]
    warned = sum(one.status == "warn" for one in findings)
    if failed:
        return f"a measurement here would not be sound: {', '.join(failed)}"
    return "a measurement here would be sound" + (f"; {pluralize(warned, 'warning')} to know about" if warned else "")
