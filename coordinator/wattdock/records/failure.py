"""Why an experiment did not finish."""

from __future__ import annotations

from typing import ClassVar

from wattdock.values import Stored


class Failure(Stored):
    """Why an experiment has no full result.

    Attributes:
        INTERRUPTED: The kind that Ctrl-C leaves.
        kind: Class of the error, for instance "RunnerError".
        stage: What was being done: "launch", "load", "warm-up", "pass 2", ….
        log_tail: The runner's last lines.
        cause: What it was, where it could be told; see `wattdock.execution.failures`.
        advice: What helps against that.
    """

    INTERRUPTED: ClassVar = "Interrupted"

    kind: str
    message: str
    stage: str
    exit_code: int
    log_tail: str = ""
    cause: str | None = None
    advice: str | None = None
