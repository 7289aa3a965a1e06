"""Whole runs with TensorRT-LLM's and SGLang's runners: the real command, a simulated GPU, stand-ins for the engines."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from command import WATTDOCK, Command, on_gpus
from contract.runner_process import PYTORCH_PYTHON, VLLM_PYTHON
from contract.subjects import SGLANG, TENSORRT, Subject
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


@pytest.mark.parametrize(
    ("subject", "python", "setting", "version"),
    [
        (TENSORRT, PYTORCH_PYTHON, "tensorrt.max_batch_size=4", "tensorrt-llm 1.2.1+standin"),
        (SGLANG, VLLM_PYTHON, "sglang.max_running_requests=4", "sglang 0.5.23+standin"),
    ],
    ids=lambda value: value.name if isinstance(value, Subject) else "",
)
def test_joules_per_token_come_out_with_the_engines_settings(
    wattdock: Command, subject: Subject, python: Path, setting: str, version: str
) -> None:
    """Settings reach the engine, its spans and tokens come back, and the GPU's energy is merged with them."""
    if not python.exists():
        pytest.skip(f"no environment at {python}")
    runners = wattdock.home / "runners"
    folder = runners / subject.name
    shutil.copytree(subject.folder, folder, ignore=shutil.ignore_patterns(".venv", "__pycache__"))
    # Beside the runner's own modules, where Python looks first.
    assert subject.stand_in
    subject.stand_in(folder)
    for file in (runners, *runners.rglob("*")):
        give_to_user(file)
    gpu = FakeGpu(uuid=GPU, profile=(constant(300),))
    env = on_gpus(wattdock, gpu) | {"WATTDOCK_RUNNERS": str(runners), "XDG_CACHE_HOME": str(wattdock.home / "cache")}
    small = ("--backend", subject.name, "--model", "shape:tiny-llama", "--passes", "1", "--max-output-tokens", "50")
    settings = ("--batch-size", "2", "--set", "warmup.passes=0", "--min-duration-s", "1", "--set", setting)
    command = With(wattdock.home, wattdock.folder)
    command.python = python
    row = command.measured(*small, *settings, env=env)
    assert row["energy"]["reason"] is None
    near_j = 4 * row["energy"]["timing_j"] + 0.5
    assert row["energy"]["total_j"] == pytest.approx(300 * row["performance"]["duration_s"], abs=near_j)
    assert row["energy"]["energy_per_output_token_j"] > 0
    environment = row["environment"]
    assert environment["gpu_uuids"] == [GPU]
    package, _, expected = version.partition(" ")
    assert environment["runner"]["package_versions"][package] == expected
    assert wattdock.left_after() == []
