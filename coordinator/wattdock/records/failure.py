"""The reason why an experiment did not finish."""

from __future__ import annotations

from typing import ClassVar

from wattdock.values import Said, Stored


class Failure(Stored):
    """Why an experiment has no full result.

    Attributes:
        INTERRUPTED: The kind that Ctrl-C leaves.
        kind: Class of the error, for instance "RunnerError".
        stage: "launch", "load", "warm-up", "pass 2", ….
        log_tail: The runner's last lines.
        cause: Its `wattdock.errors.Cause`, where it is known.
        advice: What helps against that cause, where anything does.
    """

    INTERRUPTED: ClassVar = "Interrupted"

    kind: str
    message: Said
    stage: str
    exit_code: int
    log_tail: Said = ""
    cause: str | None = None
    advice: str | None = None
