"""The timed all-reduce, over real processes of the PyTorch runner's own environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from wattdock_runner.exchange import exchange_findings

REPO = Path(__file__).resolve().parents[3]
TORCH_PYTHON = REPO / "runners/pytorch/.venv/bin/python"
SCRIPT = """
import dataclasses, json
from wattdock_runner import exchange
exchange.TIMEOUT_S = 300
print(json.dumps([
    dataclasses.asdict(exchange.all_reduce(2, "cpu", 1 << 20)),
    dataclasses.asdict(exchange.all_reduce(2, "nonsense", 1 << 20)),
    exchange.run_all([["look"]])[0],
    [dataclasses.asdict(one) for one in exchange.exchange_findings({"CUDA_VISIBLE_DEVICES": "0"})],
]))
"""


def test_an_all_reduce_between_real_processes_is_timed_and_a_failure_is_told() -> None:
    """Over gloo on a CPU; the same code takes NCCL on GPUs."""
    if not TORCH_PYTHON.exists():
        pytest.skip("the PyTorch runner's environment is not made; python -m wattdock.launch pytorch makes it")
    if subprocess.run([TORCH_PYTHON, "-c", "import torch; exit(torch.cuda.is_available())"], check=False).returncode:
        pytest.skip("this machine has a GPU; the doctor times it")
    path = os.pathsep.join(str(REPO / folder) for folder in ("proto", "runners/common"))
    done = subprocess.run(
        [TORCH_PYTHON, "-c", SCRIPT], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    timed, broken, look, [seen] = json.loads(done.stdout)
    assert timed["status"] == "ok"
    assert float(timed["value"].split()[0]) > 0
    assert "GB/s bus bandwidth, 1 MB over 2 GPUs in" in timed["value"]
    assert (broken["status"], bool(broken["advice"])) == ("fail", True)
    assert "KeyError: 'nonsense'" in broken["value"]
    assert look["count"] == 0
    assert (seen["name"], seen["status"]) == ("CUDA in the runner", "fail")


def test_a_runner_without_gpus_has_nothing_to_exchange() -> None:
    """An empty CUDA_VISIBLE_DEVICES shows none, and starts no child."""
    assert exchange_findings({"CUDA_VISIBLE_DEVICES": ""}) == []
