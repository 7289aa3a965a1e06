"""Which engine versions a runner is accepted with."""

from __future__ import annotations

import pytest
from refused import raises

from wattdock.errors import Cause, LaunchError
from wattdock.runner import RunnerDescription


def described(version: str, supported: str = ">=0.26,<0.34") -> RunnerDescription:
    return RunnerDescription("vllm", "vllm", version, "3.12", supported_versions=supported)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0+cpu", "0.33.1rc1", "0.31.0a0+nv26.10"])
def test_versions_in_the_range_are_accepted_with_their_local_builds(version: str) -> None:
    """Vendors build from pre-releases and mark them."""
    described(version).require_supported()


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", ""])
def test_others_are_refused_with_what_is_supported(version: str) -> None:
    """A figure from an engine that nobody tried is worse than none."""
    with raises(LaunchError, "vllm", version, ">=0.26,<0.34", cause=Cause.VERSION):
        described(version).require_supported()


def test_a_runner_that_states_no_range_is_accepted() -> None:
    """It answers for itself."""
    described("", supported="").require_supported()
