"""What transformers makes and says, once for all runners' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from contract.runner_process import PYTORCH_PYTHON
from contract.shared_runners import BY_NAME
from runners.checkpoints import Reference, make_checkpoint, read_reference, run

from wattdock.inputs.build_once import build_once

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint


@pytest.fixture(scope="session")
def reference(common: Path) -> Reference:
    """A checkpoint, and plain transformers' answers, for all processes of the suite."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no PyTorch environment at {PYTORCH_PYTHON}")
    build_once(common / "checkpoint", make_checkpoint, progress=print)
    return read_reference(common / "checkpoint")


@pytest.fixture(scope="session")
def checkpoint(reference: Reference) -> Checkpoint:
    return reference.checkpoint


@pytest.fixture(scope="session")
def drawn_pass(runners: SharedRunners, model_path: Path) -> Pass:
    """What the PyTorch runner generates with WIDE_UNIFORM in float32, as the contract test loads it."""
    runner, _ = runners.loaded("pytorch", model_path, **BY_NAME["pytorch"].load_fields)
    return run(runner)
