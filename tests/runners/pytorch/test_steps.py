"""Counting and dating what `generate` returned, without torch."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import PYTORCH_FOLDER

if TYPE_CHECKING:
    from types import ModuleType


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    """Return the module, which imports no torch by itself."""
    spec = importlib.util.spec_from_file_location(
        "wattdock_pytorch_steps", PYTORCH_FOLDER / "wattdock_pytorch_steps.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "torch" not in sys.modules
    return module


@pytest.mark.parametrize(
    ("ids", "limit", "length"),
    [
        ([5, 6, 7], 3, 3),
        ([5, 2, 0, 0], 4, 2),
        ([2, 0, 0], 3, 1),
        ([5, 9, 2, 9], 4, 2),
        ([5, 6, 7, 2], 2, 2),
        ([5, 0, 7, 0], 4, 4),
    ],
)
def test_the_end_of_sequence_counts_and_what_follows_does_not(
    steps: Any, ids: list[int], limit: int, length: int
) -> None:
    """Ids 2 and 9 end a sequence; 0 is padding only after them."""
    assert steps.output_length(ids, {2, 9}, limit) == length


def test_device_instants_follow_a_straight_line_between_the_dated_events(steps: Any) -> None:
    """A device clock that runs 100 ppm fast is corrected: 5.0005 of its seconds are 5 of the host's."""
    instants = steps.host_instants([0.0, 5_000.5, 10_001.0], 10_001.0, 1_000, 10_000_001_000)
    assert instants == [1_000, 5_000_001_000, 10_000_001_000]


def test_clocks_that_disagree_are_an_error(steps: Any) -> None:
    """20 ms in 10 s is no drift."""
    with pytest.raises(RuntimeError, match="by the GPU's"):
        steps.host_instants([1.0], 9_980.0, 0, 10_000_000_000)
