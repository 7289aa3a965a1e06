"""A power profile stands beside each figure that was measured under it, and is a condition of the restarts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from make.rows import document, row
from seams.analysis import required_conditions
from seams.console import results_view, terminal_rows
from seams.reports import page

from wattdock.records import EnvironmentSnapshot

if TYPE_CHECKING:
    from wattdock.store import StoredResult

GPU = "environment.host_gpus.0"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(**gpu: Any) -> EnvironmentSnapshot:
    """Return the sample's environment with some of its GPU's facts changed."""
    return EnvironmentSnapshot.model_validate(
        document({f"{GPU}.{name}": value for name, value in gpu.items()})["environment"]
    )


@pytest.fixture
def max_q() -> StoredResult:
    return row("one", {f"{GPU}.power_profiles": ["max-q", "hpc"], f"{GPU}.power_profiles_requested": ["max-q", "hpc"]})


def test_a_profile_in_force_is_named_beside_the_figure_and_its_absence_is_not(max_q: StoredResult) -> None:
    """On the page once for each result, in the terminal behind the figure, of a table with the result's name."""
    said = "power profile: max-q, hpc"
    assert page([max_q, row("two")], title="x", written=NOW).count(f">{said}<") == 1
    assert terminal_rows(max_q)["as measured"].endswith(f" W, {said}")
    assert "power profile" not in str(terminal_rows(row("two")))
    lines = [part for part in results_view([max_q, row("two")]) if isinstance(part, str)]
    assert [line for line in lines if said in line] == [f"one: {said}"]


def test_a_profile_of_a_gpu_that_was_not_used_and_one_that_was_only_requested_are_not_named() -> None:
    """The figure is of the GPUs used, under what is in force."""
    other = {"index": 1, "uuid": "GPU-b", "name": "NVIDIA B200", "power_profiles": ["max-q"]}
    made = document()["environment"]
    made["host_gpus"].append(other)
    assert EnvironmentSnapshot.model_validate(made).power_profiles == ()
    assert snapshot(power_profiles_requested=["max-q"], power_profiles=[]).power_profiles == ()
    made["gpu_uuids"].append("GPU-b")
    assert EnvironmentSnapshot.model_validate(made).power_profiles == ("max-q",)


@pytest.mark.parametrize(
    ("fact", "condition", "value", "text"),
    [
        ("power_profiles", "power profiles", ["max-q", "hpc"], "max-q + hpc"),
        ("power_profiles", "power profiles", [], "none"),
        ("power_profiles_requested", "power profiles requested", ["training"], "training"),
        ("power_smoothing", "power smoothing", False, "False"),
        ("power_smoothing_profile", "power smoothing preset", 3, "3"),
        ("vbios_version", "GPU vBIOS", "96.00.A5.00.1A", "96.00.A5.00.1A"),
        ("persistence", "GPU persistence", False, "False"),
    ],
)
def test_the_power_state_must_be_equal_over_restarts_and_unknown_is_not_off(
    fact: str, condition: str, value: object, text: str
) -> None:
    """Whatever changes joules per token while the power limit stays as it is."""
    assert required_conditions(snapshot(**{fact: value}))[condition] == text
    assert required_conditions(snapshot(**{fact: None}))[condition] == "unknown"
