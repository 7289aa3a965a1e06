"""Models split over real processes from outside: what a dead rank and a full KV cache leave, and what then is done."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from command import on_gpus, wait_for
from contract.runner_process import PYTORCH_PYTHON, VLLM_PYTHON
from fake_nvml import FakeGpu, uuid_of

if TYPE_CHECKING:
    from pathlib import Path

    from command import Command

RUNNER = 5
# Passes of ten seconds, so that one can be killed in.
TENSOR = """
backend: pytorch
model: shape:tiny-llama
on_failure: fallback
warmup: {passes: 0}
repeats: {passes: 1}
workload: {batch_size: 2, min_duration_s: 10, max_output_tokens: 32}
pytorch: {tp_plan: auto, tp_size: 2}
"""
# tiny-llama: layers × keys and values × KV heads × head size × bytes of a float32.
TOKEN_BYTES = 4 * 2 * 2 * 64 * 4
# Requests of 96 tokens take three blocks of 32 each: room for two of them, and not for four.
CROWDED = f"""
backend: vllm
model: shape:tiny-llama
on_failure: fallback
warmup: {{passes: 0}}
repeats: {{passes: 1}}
workload: {{prompts: {{source: synthetic, input_tokens: 64}}, batch_size: 4, max_output_tokens: 32}}
vllm: {{block_size: 32, kv_cache_memory_bytes: {8 * 32 * TOKEN_BYTES}, max_model_len: 128}}
"""


def needs(python: Path, name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not python.exists(), reason=f"no {name} environment at {python}")


def results(wattdock: Command) -> dict[str, dict[str, Any]]:
    """Return the results by how they differ from what was asked for."""
    return {(result["fallback"] or {"change": "asked"})["change"]: result for result in wattdock.results()}


@pytest.mark.slow
@needs(PYTORCH_PYTHON, "PyTorch")
def test_a_rank_killed_mid_pass_is_a_classified_result_and_another_split_is_measured_instead(wattdock: Command) -> None:
    """Two real ranks over gloo, one of them killed; no process is left, and the result says tensor parallel."""
    pytorch = replace(wattdock, runner_python=PYTORCH_PYTHON)
    running = pytorch.start("run", pytorch.write(TENSOR), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    wait_for(running, "restart 1")
    ranks = [pid for pid, line in pytorch.processes().items() if "wattdock_runner.worker" in line]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    _, err = running.communicate(timeout=180)
    assert running.returncode == RUNNER, err
    found = results(pytorch)
    asked = found.pop("asked")
    assert asked["status"] == "failed"
    assert asked["error"]["cause"] == "worker died"
    assert f"(pid {ranks[1]}) died: it was killed by SIGKILL" in asked["error"]["message"]
    assert asked["environment"]["runner"]["parallelism"]["kind"] == "tensor"
    instead = found.pop("pytorch.device_map: auto")
    assert instead["status"] == "ok"
    assert instead["fallback"]["fallback_of"] == asked["experiment_id"]
    assert found == {}
    assert pytorch.left_after(10) == []


@pytest.mark.slow
@needs(VLLM_PYTHON, "vLLM")
def test_a_kv_cache_that_is_too_small_is_a_classified_result_and_fewer_in_flight_are_measured_instead(
    wattdock: Command,
) -> None:
    """A real engine with room for two requests: four fail by name, two are served."""
    vllm = replace(wattdock, runner_python=VLLM_PYTHON)
    done = vllm("run", vllm.write(CROWDED), timeout=240)
    assert done.returncode == RUNNER, done.stderr
    found = results(vllm)
    assert found["asked"]["error"]["cause"] == "KV cache too small"
    assert "4 requests in flight need" in found["asked"]["error"]["message"]
    assert found["workload.batch_size: 2"]["status"] == "ok"
    assert len(found) == 2
    assert vllm.left_after(10) == []


def test_a_replica_killed_mid_pass_is_a_classified_result_and_no_process_is_left(wattdock: Command) -> None:
    """On simulated GPUs, with the fake engine."""
    env = on_gpus(wattdock, FakeGpu(uuid=uuid_of(1)), FakeGpu(uuid=uuid_of(2)))
    words = ("--backend", "fake", "--model", "shape:tiny-llama", "--gpus", "0,1", "--min-duration-s", "60")
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    running = wattdock.start("run", *words, "--set", "fake.data_parallel_size=2", env=env, **pipes)
    wait_for(running, "restart 1")
    replicas = [pid for pid, line in wattdock.processes().items() if "wattdock_runner.worker" in line]
    assert len(replicas) == 2
    os.kill(replicas[0], signal.SIGKILL)
    _, err = running.communicate(timeout=240)
    assert running.returncode == RUNNER, err
    [result] = wattdock.results()
    assert result["error"]["cause"] == "worker died"
    assert "killed by SIGKILL" in result["error"]["message"]
    assert result["environment"]["runner"]["parallelism"]["kind"] == "data"
    assert wattdock.left_after(5) == []
