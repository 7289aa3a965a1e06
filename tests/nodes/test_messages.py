"""What an agent says of an error comes back as the head's own."""

from __future__ import annotations

import pytest
from seams.nodes import messages, pb

from wattdock.errors import (
    Cause,
    ClockError,
    ConfigError,
    LaunchError,
    MeterError,
    PreflightError,
    RunnerError,
    StoreError,
    WattdockError,
)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        *((kind, kind) for kind in (ConfigError, PreflightError, LaunchError, RunnerError, MeterError, StoreError)),
        (ClockError, MeterError),
    ],
)
def test_an_error_of_a_node_keeps_class_cause_and_remedy(sent: type[WattdockError], kind: type[WattdockError]) -> None:
    """And says which node's it is."""
    came = messages.error_from(messages.error_message(sent("no room", "make some", cause=Cause.NO_SPACE)), "b:7407")
    assert (type(came), came.what, came.remedy, came.cause) == (
        kind,
        "node b:7407: no room",
        "make some",
        "no space left",
    )


@pytest.mark.parametrize("exit_code", [0, 1, 8, 99, 130])
def test_an_exit_code_that_no_error_has_is_the_runners_failure(exit_code: int) -> None:
    """An agent of another kind would otherwise end the head as a bug of its own."""
    came = messages.error_from(pb.NodeError(what="lost", exit_code=exit_code), "b:7407")
    assert (type(came), came.exit_code, came.what) == (RunnerError, 5, "node b:7407: lost")
