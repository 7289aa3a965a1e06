"""`wattdock gpus` and `wattdock doctor` from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import fake_nvml
from command import on_gpus
from fake_nvml import FakeGpu, FakeProcess

if TYPE_CHECKING:
    from command import Command

ONE, TWO = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
LONG = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"


def test_the_table_holds_every_gpu_within_eighty_columns(wattdock: Command) -> None:
    """A line for all, one per GPU, its UUID and processes, and how they are linked."""
    gpus = [
        FakeGpu(uuid=ONE, nvlink_peers=(1,) * 18, processes=(FakeProcess(1),)),
        FakeGpu(uuid=TWO, nvlink_peers=(0,) * 18),
        *(FakeGpu(uuid=fake_nvml.uuid_of(n), name=LONG, mig=1, mig_slices=1, numa_node=1) for n in range(3, 9)),
    ]
    done = wattdock("gpus", env=on_gpus(wattdock, *gpus) | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    for said in ("2 × NVIDIA H200", ONE, "process 1 (root, ", "18 NVLinks 4.0", "NV18", "SYS", "0.0/150.8"):
        assert said in done.stdout
    assert "MIG slices" in done.stdout


def test_json_holds_everything_and_nothing_else_is_printed(wattdock: Command) -> None:
    """Keys that scripts rely on."""
    gpus = [FakeGpu(uuid=ONE, processes=(FakeProcess(1),)), FakeGpu(uuid=TWO, lost_at_s=0)]
    view = json.loads(wattdock("gpus", "--json", env=on_gpus(wattdock, *gpus)).stdout)
    assert view["schema_version"] == 1
    assert view["totals"]["gpu_count"] == 1
    [gpu] = view["gpus"]
    assert (gpu["uuid"], gpu["vram_total_bytes"], gpu["ecc"]) == (ONE, 150_754_820_096, True)
    assert gpu["now"]["processes"][0]["user"] == "root"
    assert gpu["lease"] is None
    assert gpu["occupied"].startswith("process 1 (root")
    assert "GPU 1: GPU is lost" in view["unreadable"]


def test_a_machine_without_a_gpu_says_so_in_one_line_with_exit_code_3(wattdock: Command) -> None:
    """In JSON too; there is nothing to watch."""
    for words in (("gpus",), ("gpus", "--watch")):
        done = wattdock(*words)
        assert (done.returncode, done.stdout) == (3, "no GPU: no NVIDIA driver: libnvidia-ml.so.1 was not found\n")
    done = wattdock("gpus", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["reason"] == "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def test_watching_goes_on_until_ctrl_c_which_is_no_failure(wattdock: Command) -> None:
    """One JSON object a line for a program that reads along."""
    env = on_gpus(wattdock, FakeGpu(uuid=ONE))
    watch = wattdock.start("gpus", "--watch", "--json", env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert watch.stdout is not None
    for _ in range(2):
        assert json.loads(watch.stdout.readline())["gpus"][0]["uuid"] == ONE
    wattdock.interrupt(signal.SIGINT)
    _, said = watch.communicate(timeout=240)
    assert (watch.returncode, said) == (0, "")


def test_the_doctor_finds_nothing_wrong_with_a_free_gpu_and_names_what_is_wrong_with_others(wattdock: Command) -> None:
    """Only the GPUs asked about count; the exit code says whether a measurement would be sound."""
    gpus = [
        FakeGpu(uuid=ONE),
        FakeGpu(uuid=TWO, processes=(FakeProcess(1),), persistence=0, power_limit_w=500, clocks_limited=1),
    ]
    env = on_gpus(wattdock, *gpus)
    sound = wattdock("doctor", "--gpus", "0", "--json", env=env)
    assert sound.returncode == 0, sound.stdout
    answer = json.loads(sound.stdout)
    assert answer["sound"] is True
    names = {one["name"] for one in answer["checks"]}
    assert {"driver", "GPU 0 energy counter", "leases", "results folder", "clock source"} <= names
    done = wattdock("doctor", "--gpus", "1,7", env=env)
    assert done.returncode == 3
    for line in (
        "fail    GPU 1 in use: process 1 (root, ",
        "warn    GPU 1 persistence: off",
        "warn    GPU 1 power limit: 500 W, the board's default is 700 W",
        "warn    GPU 1 clocks: held down by a setting",
        "fail    GPU 7: there is none",
        "→ as root: nvidia-smi -i 1 -pm 1",
        "a measurement here would not be sound: GPU 7, GPU 1 in use",
    ):
        assert line in done.stdout


def test_a_busy_gpu_that_would_not_be_chosen_spoils_nothing(wattdock: Command) -> None:
    """Servers are shared; where all are busy there is nothing to choose."""
    busy = FakeGpu(uuid=ONE, processes=(FakeProcess(1),))
    done = wattdock("doctor", env=on_gpus(wattdock, busy, FakeGpu(uuid=TWO)))
    assert done.returncode == 0, done.stdout
    assert "pass    GPUs chosen: 1, as free" in done.stdout
    assert "warn    GPU 0 in use: process 1 (root, " in done.stdout
    done = wattdock("doctor", env=on_gpus(wattdock, busy))
    assert done.returncode == 3
    assert "fail    GPUs chosen: 1 GPU needed, free GPUs here: none (GPU 0: process 1 (root, " in done.stdout
    assert "fail    GPU 0 in use" in done.stdout
    done = wattdock("doctor", env=on_gpus(wattdock, FakeGpu(uuid=ONE)) | {"CUDA_VISIBLE_DEVICES": ""})
    assert "fail    GPUs chosen: none: CUDA_VISIBLE_DEVICES=" in done.stdout


def test_the_doctor_asks_the_backend_in_its_own_environment(wattdock: Command) -> None:
    """A real runner is started and stopped; a backend that does not exist is a finding."""
    env = on_gpus(wattdock, FakeGpu(uuid=ONE), FakeGpu(uuid=TWO))
    asked = ("--backend", "fake", "--gpus", "0", "--runner-python", sys.executable, "--json")
    answer = json.loads(wattdock("doctor", *asked, env=env).stdout)
    found = {one["name"]: one for one in answer["checks"]}
    assert found["fake"]["status"] == "pass"
    assert found["runner's clock"]["figure"].startswith("the host's")
    # The test's interpreter has no torch, which is what a runner on a GPU would need.
    assert found["CUDA in the runner"]["status"] == "fail"
    assert "torch" in found["CUDA in the runner"]["figure"]
    assert found["all-reduce"]["figure"].startswith("not timed: the runner had GPU 0 alone")
    assert wattdock.left_after(10) == []


def test_a_machine_without_gpu_fails_the_doctor_with_the_reason(wattdock: Command) -> None:
    """Speed could be measured, energy not."""
    done = wattdock("doctor")
    assert done.returncode == 3
    assert "fail    driver: no NVIDIA driver: libnvidia-ml.so.1 was not found" in done.stdout
