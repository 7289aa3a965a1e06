"""Runners for tests that load models of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_FOLDER, VLLM_PYTHON, running
from contract.subjects import write_config

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.runner_process import Runner


@pytest.fixture(scope="module")
def second_runner() -> Iterator[Runner]:
    """Return another runner, for tests that load; its environment asks for an engine core of its own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
            yield runner


@pytest.fixture
def bare(second_runner: Runner, tmp_path: Path) -> Iterator[tuple[Runner, Path]]:
    """Return a runner with nothing loaded, and a folder with config.json only."""
    yield second_runner, write_config(tmp_path / "bare")
    second_runner.unload()
