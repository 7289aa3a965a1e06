"""Two small studies, measured in virtual time once, and a browser to look at their reports with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from make.machine import VirtualMachine

from wattdock.config import load_study

if TYPE_CHECKING:
    from pathlib import Path


GPU_STUDY = """\
name: two simulated GPUs
defaults:
  backend: fake
  model: shape:tiny-llama
  fake: {step_s: 0.02}
  gpus: {count: 2}
  workload: {max_output_tokens: 40, prompts: {count: 4}}
  repeats: {restarts: 3, passes: 1}
sweep:
  fake.used_gpus: [1, 2]
  workload.batch_size: [1, 4]
experiments:
  - {name: one that fails, fake: {used_gpus: 1, pass_fault: die}}
"""
CPU_STUDY = """\
name: cpu
defaults:
  backend: fake
  model: shape:tiny-llama
  workload: {max_output_tokens: 16, prompts: {count: 4, input_tokens: 16}}
  repeats: {restarts: 1, passes: 2}
sweep:
  workload.batch_size: [1, 4]
"""


def _measured(study: str, machine: VirtualMachine) -> Path:
    """Measure a study's file on a machine, and return the folder of its results."""
    file = machine.folder / "study.yaml"
    file.write_text(study)
    machine.run(load_study(file, {}))
    return machine.results


@pytest.fixture(scope="session")
def stats() -> Any:
    """Scipy's statistics, which take a second to import: not before a test wants them."""
    from scipy import stats

    return stats


@pytest.fixture(scope="session")
def gpu_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of four experiments and a failing one on two simulated GPUs, 300 and 200 W."""
    power = {fake_nvml.uuid_of(1): lambda _: 300.0, fake_nvml.uuid_of(2): lambda _: 200.0}
    return _measured(GPU_STUDY, VirtualMachine(tmp_path_factory.mktemp("gpu-study"), power))


@pytest.fixture(scope="session")
def cpu_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two batch sizes on a CPU; no joules."""
    return _measured(CPU_STUDY, VirtualMachine(tmp_path_factory.mktemp("cpu-study")))
