"""One line of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What was looked at and what was seen.

    Attributes:
        status: "fail": no sound measurement while it is so; "warn": a measurement, with this to be known about it.
        value: What was seen.
        advice: What to do next; empty where all is well.
    """

    name: str
    status: Status
    value: str
    advice: str = ""


def ok(name: str, value: str) -> Finding:
    """Return a line on something that is as it should be."""
    return Finding(name, "ok", value)


def warn(name: str, value: str, advice: str) -> Finding:
    """Return a line on something to know about."""
    return Finding(name, "warn", value, advice)


def fail(name: str, value: str, advice: str) -> Finding:
    """Return a line on something that spoils a measurement."""
    return Finding(name, "fail", value, advice)
