"""A whole run with the TensorRT-LLM runner: the real command and runner, a simulated GPU, a stand-in for the engine."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from command import REPO, WATTDOCK, Command, on_gpus
from contract.runner_process import PYTORCH_PYTHON
from fake_nvml import FakeGpu, constant
from runners.tensorrt.make_standin import make_standin
from unprivileged import give_to_user

if TYPE_CHECKING:
    from pathlib import Path

GPU = "GPU-5a0d1000-0000-0000-0000-000000000000"

pytestmark = [
    pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no environment with torch at {PYTORCH_PYTHON}"),
]


class WithTorch(Command):
    """The installed `wattdock`, whose runners have torch."""

    def words(self, *args: str | Path) -> list[str | Path]:
        return [WATTDOCK, *args, "--runner-python", PYTORCH_PYTHON]


def test_joules_per_token_come_out_with_the_engines_settings(wattdock: Command) -> None:
    """Settings reach the engine, its spans and tokens come back, and the GPU's energy is merged with them."""
    runners = wattdock.home / "runners"
    folder = runners / "tensorrt"
    shutil.copytree(REPO / "runners/tensorrt", folder, ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    # Beside the runner's own modules, where Python looks first.
    make_standin(folder)
    for file in (runners, *runners.rglob("*")):
        give_to_user(file)
    gpu = FakeGpu(uuid=GPU, profile=(constant(300),))
    env = on_gpus(wattdock, gpu) | {"WATTDOCK_RUNNERS": str(runners), "XDG_CACHE_HOME": str(wattdock.home / "cache")}
    small = ("--backend", "tensorrt", "--model", "shape:tiny-llama", "--passes", "1", "--max-output-tokens", "50")
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
    row = WithTorch(wattdock.home, wattdock.folder).measured(*small, *settings, env=env)
    assert row["energy"]["reason"] is None
    near_j = 4 * row["energy"]["uncertainty"]["timing_j"] + 0.5
    assert row["energy"]["total_j"] == pytest.approx(300 * row["performance"]["duration_s"], abs=near_j)
    assert row["energy"]["energy_per_output_token_j"] > 0
    environment = row["environment"]
    assert environment["gpu_uuids"] == [GPU]
    assert environment["runner"]["package_versions"]["tensorrt-llm"] == "1.2.1+standin"
    assert wattdock.left_after() == []
