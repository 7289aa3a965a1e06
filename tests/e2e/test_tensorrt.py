"""Whole runs with TensorRT-LLM's runner: the real command, a simulated GPU, a stand-in for the engine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from command import WATTDOCK, Command, on_gpus
from contract.runner_process import PYTORCH_PYTHON
from contract.subjects import TENSORRT
from fake_nvml import FakeGpu, constant
from unprivileged import give_to_user

if TYPE_CHECKING:
    from pathlib import Path

GPU = "GPU-5a0d1000-0000-0000-0000-000000000000"


class With(Command):
    """The installed `wattdock`, whose runners have an interpreter of their own."""

    python: str | Path = ""

    def words(self, *args: str | Path) -> list[str | Path]:
        return [WATTDOCK, *args, "--runner-python", self.python]


def test_joules_per_token_come_out_with_the_engines_settings(wattdock: Command) -> None:
    """Settings reach the engine, its spans and tokens come back, and the GPU's energy is merged with them."""
    if not PYTORCH_PYTHON.exists():
        pytest.skip(f"no environment at {PYTORCH_PYTHON}")
    runners = wattdock.home / "runners"
    folder = runners / TENSORRT.name
    shutil.copytree(TENSORRT.folder, folder, ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    # Beside the runner's own modules, where Python looks first.
    assert TENSORRT.stand_in
    TENSORRT.stand_in(folder)
    for file in (runners, *runners.rglob("*")):
        give_to_user(file)
    gpu = FakeGpu(uuid=GPU, profile=(constant(300),))
    env = on_gpus(wattdock, gpu) | {"WATTDOCK_RUNNERS": str(runners), "XDG_CACHE_HOME": str(wattdock.home / "cache")}
    small = ("--backend", TENSORRT.name, "--model", "shape:tiny-llama", "--passes", "1", "--max-output-tokens", "50")
    settings = (
        "--batch-size",
        "2",
        "--set",
        "warmup.passes=0",
        "--min-duration-s",
        "1",
        "--set",
        "tensorrt.max_batch_size=4",
    )
    command = With(wattdock.home, wattdock.folder)
    command.python = PYTORCH_PYTHON
    row = command.measured(*small, *settings, env=env)
    assert row["energy"]["reason"] is None
    near_j = 4 * row["energy"]["timing_j"] + 0.5
    assert row["energy"]["total_j"] == pytest.approx(300 * row["performance"]["duration_s"], abs=near_j)
    assert row["energy"]["energy_per_output_token_j"] > 0
    environment = row["environment"]
    assert environment["gpu_uuids"] == [GPU]
    assert environment["runner"]["package_versions"]["tensorrt-llm"] == "1.2.1+standin"
    assert wattdock.left_after() == []
