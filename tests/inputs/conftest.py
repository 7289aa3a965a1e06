"""What transformers and torch count of every configuration, once per session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, printed_by
from make.architectures import CONFIGS, LENGTHS, WITH_FLOPS


@pytest.fixture(scope="session")
def theirs() -> dict[str, dict[str, Any]]:
    """What transformers makes of every configuration; see transformers_counter.py."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no PyTorch environment at {PYTORCH_PYTHON}")
    cases = {name: (config, LENGTHS if name in WITH_FLOPS else []) for name, config in CONFIGS.items()}
    script = Path(__file__).with_name("transformers_counter.py")
    counted: dict[str, dict[str, Any]] = json.loads(
        printed_by(script, python=PYTORCH_PYTHON, folder=PYTORCH_FOLDER, stdin=json.dumps(cases))
    )
    return counted
