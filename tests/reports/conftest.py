"""Two small studies, measured for real once, and a browser to look at their reports with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from command import REPO, Command, on_gpus
from fake_nvml import FakeGpu, constant
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from unprivileged import give_to_user, user_home

if TYPE_CHECKING:
    from collections.abc import Iterator

WATTDOCK = Path(sys.executable).with_name("wattdock")
GPU_STUDY = """\
name: two simulated GPUs
defaults:
  backend: fake
  model: shape:tiny-llama
  fake: {step_s: 0.02}
  gpus: {count: 2}
  workload: {max_output_tokens: 40, prompts: {count: 4}}
  repeats: {restarts: 2, passes: 1}
sweep:
  fake.used_gpus: [1, 2]
  workload.batch_size: [1, 4]
experiments:
  - {name: one that fails, fake: {used_gpus: 1, pass_fault: raise}}
"""
CPU_STUDY = """\
name: cpu
defaults:
  backend: pytorch
  model: shape:tiny-llama
  workload: {max_output_tokens: 16, prompts: {count: 4, input_tokens: 16}}
  repeats: {restarts: 1, passes: 2}
sweep:
  workload.batch_size: [1, 4]
"""


def _command(folder: Path) -> Command:
    # Ending with the unprivileged user's home, whose working folder is what it may write to.
    home = user_home(folder)
    (home / "work").mkdir()
    give_to_user(home / "work")
    return Command(home, home / "work")


@pytest.fixture(scope="session")
def gpu_study(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Four experiments and a failing one on two simulated GPUs, 300 and 200 W."""
    command = _command(tmp_path_factory.mktemp("gpu-study"))
    gpus = [FakeGpu(uuid=fake_nvml.uuid_of(at + 1), profile=(constant(300 - 100 * at),)) for at in range(2)]
    (command.folder / "study.yaml").write_text(GPU_STUDY)
    done = command("run", "study.yaml", "--quiet", env=on_gpus(command, *gpus), timeout=240)
    assert done.returncode == 5, done.stderr
    assert len(command.results()) == 5
    return command


@pytest.fixture(scope="session")
def cpu_study(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Two batch sizes through transformers on this machine's CPU; no joules."""
    runner_python = REPO / "runners/pytorch/.venv/bin/python"
    if not runner_python.exists():
        pytest.skip("runners/pytorch/.venv is not there: `make test` makes it")
    command = replace(_command(tmp_path_factory.mktemp("cpu-study")), runner_python=runner_python)
    (command.folder / "study.yaml").write_text(CPU_STUDY)
    own = {"WATTDOCK_HOME": command.home / "wattdock", "WATTDOCK_LEASES": command.home / "leases"}
    words: list[str | Path] = [WATTDOCK, "run", "study.yaml", "--quiet", "--runner-python", runner_python]
    done = subprocess.run(
        words,
        env={"PATH": "/usr/bin:/bin", "HOME": str(command.home)} | {name: str(path) for name, path in own.items()},
        cwd=command.folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return command


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium that logs what a page says and fetches."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here: on Debian apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    opened.set_window_size(1280, 1000)
    try:
        yield opened
    finally:
        opened.quit()
