"""The shared vLLM runner for tests that load models of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners


@pytest.fixture
def bare(runners: SharedRunners, model_path: Path) -> tuple[Runner, Path]:
    """Return a runner with nothing loaded, and a folder with config.json only."""
    return runners.bare("vllm"), model_path
