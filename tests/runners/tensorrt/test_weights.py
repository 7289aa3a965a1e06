"""A checkpoint of drawn parameters is one that any reader of checkpoints takes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from contract.runner_process import PYTORCH_PYTHON, TENSORRT_FOLDER, runner_environment
from contract.subjects import write_config


@pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no environment with torch at {PYTORCH_PYTHON}")
def test_transformers_reads_back_every_parameter_with_the_stated_distribution(tmp_path: Path) -> None:
    """Uniform on [-0.02, 0.04): mean 0.01, deviation 0.06/√12; in several files, and what is tied is one."""
    target = tmp_path / "drawn"
    target.mkdir()
    script = Path(__file__).with_name("drawn.py")
    command = [PYTORCH_PYTHON, script, write_config(tmp_path / "model"), target]
    env = runner_environment(TENSORRT_FOLDER, "")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["missing"], facts["unexpected"], facts["dtype"]) == ([], [], "torch.bfloat16")
    assert facts["parameters"] == facts["expected_parameters"] > 200_000
    assert facts["shards"] > 1
    assert facts["tied"]
    assert -0.0201 < facts["low"] < -0.0199
    assert 0.0398 < facts["high"] < 0.0401
    assert facts["mean"] == pytest.approx(0.01, abs=2e-4)
    assert facts["std"] == pytest.approx(0.06 / 12**0.5, rel=0.01)
