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
        cause: The known cause, where the error matches one; see `wattdock.execution.failures`.
        advice: The remedy for that cause.
    """

    INTERRUPTED: ClassVar = "Interrupted"

    kind: str
    message: Said
    stage: str
    exit_code: int
    log_tail: Said = ""
    cause: str | None = None
    advice: str | None = None
