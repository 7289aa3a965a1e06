"""`wattdock gpus` and `wattdock doctor` over simulated GPUs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import fake_nvml
import pynvml
import pytest
from fake_nvml import FakeGpu, FakeProcess
from seams.doctor import machine as doctor_machine
from seams.host import NvmlError
from seams.metering import NvmlSource, meter

if TYPE_CHECKING:
    from pathlib import Path
    from subprocess import CompletedProcess

    from conftest import Called

FIRST, SECOND = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)
BUSY = FakeGpu(uuid=FIRST, processes=(FakeProcess(1),))
NONE = "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def checks_of(done: CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """Return status and figure of each check of `doctor --json`, by its name."""
    return {check["name"]: (check["status"], check["figure"]) for check in json.loads(done.stdout)["checks"]}


@pytest.fixture
def on(library: Path, called: Called, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Call a command on a machine with these GPUs, which are metered in virtual time."""
    monkeypatch.setattr(doctor_machine, "WATCHED_S", 0.1)

    def call(gpus: tuple[FakeGpu, ...], *words: str, **faults: Any) -> CompletedProcess[str]:
        options: dict[str, Any] = faults if gpus else {"init_error": 12}
        with fake_nvml.loaded(library, gpus=gpus, **options) as fake:
            monkeypatch.setattr(meter, "Clock", lambda: fake)
            return called(*words)

    return call


def test_the_table_holds_every_gpu_within_eighty_columns(on: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for all, one per GPU, its UUID and processes, and how they are linked."""
    monkeypatch.setenv("COLUMNS", "80")
    long = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    gpus = (
        FakeGpu(uuid=FIRST, nvlink_peers=(1,) * 18, processes=(FakeProcess(1),)),
        FakeGpu(uuid=SECOND, nvlink_peers=(0,) * 18),
        *(FakeGpu(uuid=fake_nvml.uuid_of(n), name=long, mig=1, mig_slices=1, numa_node=1) for n in range(3, 9)),
    )
    done = on(gpus, "gpus")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines()[1:10])) <= 80
    for said in ("2 × NVIDIA H200", FIRST, "process 1 (root, ", "18 NVLinks", "NV18", "SYS", "0.0/150.8"):
        assert said in done.stdout
    assert "MIG slices" in done.stdout


def test_a_plan_tells_what_speaks_against_splitting_a_model_over_its_gpus(on: Called) -> None:
    """As the run would, once for all experiments; of one GPU nothing."""
    gpus = (FakeGpu(uuid=FIRST), FakeGpu(uuid=SECOND, name="NVIDIA L4", numa_node=1))
    words = ("plan", "--backend", "fake", "--model", "shape:tiny-llama", "--gpus")
    lines = on(gpus, *words, "0,1").stdout.splitlines()
    assert len([line for line in lines if "linked through a CPU (SYS)" in line]) == 1
    assert len([line for line in lines if "of 2 models: NVIDIA H200, NVIDIA L4" in line]) == 1
    alone = on(gpus, *words, "0")
    assert (alone.returncode, "models" in alone.stdout) == (0, False), alone.stderr


def test_a_power_profile_is_named_and_what_was_requested_but_is_not_in_force(on: Called) -> None:
    """A GPU at its default has no such line, nor has one that knows no profiles."""
    gpus = (
        FakeGpu(uuid=FIRST, power_profiles_requested=(1, 20), power_profiles=(1,)),
        FakeGpu(uuid=SECOND, power_profiles_requested=(), power_profiles=()),
        FakeGpu(uuid=fake_nvml.uuid_of(3)),
    )
    done = on(gpus, "gpus")
    profiles = [line.strip() for line in done.stdout.splitlines() if "power profile:" in line]
    assert profiles == ["power profile: max-q (requested: max-q, training)"]


def test_json_holds_everything_and_nothing_else_is_printed(on: Called) -> None:
    """Keys that scripts rely on."""
    view = json.loads(on((BUSY, FakeGpu(uuid=SECOND, lost_at_s=0)), "gpus", "--json").stdout)
    assert view["schema_version"] == 1
    [gpu] = view["inventory"]["gpus"]
    assert (gpu["uuid"], gpu["vram_total_bytes"], gpu["ecc"]) == (FIRST, 150_754_820_096, True)
    assert view["inventory"]["activity"][FIRST]["processes"][0]["user"] == "root"
    assert view["occupied"][FIRST].startswith("process 1 (root")
    [unreadable] = view["inventory"]["unreadable"]
    assert unreadable.startswith("GPU 1: ")


def test_a_machine_without_a_gpu_says_so_in_one_line_with_exit_code_3(on: Called) -> None:
    """In JSON too; there is no energy for the doctor to find."""
    done = on((), "gpus")
    # Who is not root is also told that others' leases are not seen.
    assert (done.returncode, done.stdout.splitlines()[0]) == (3, f"no GPU: {NONE}")
    done = on((), "gpus", "--json")
    assert (done.returncode, json.loads(done.stdout)["inventory"]["reason"]) == (3, NONE)
    done = on((), "doctor", "--json")
    assert (done.returncode, checks_of(done)["driver"]) == (3, ("fail", NONE))


def test_the_doctor_finds_nothing_wrong_with_a_free_gpu_and_names_what_is_wrong_with_others(on: Called) -> None:
    """Only the GPUs asked about count; the exit code says whether a measurement would be sound."""
    spoiled = FakeGpu(uuid=SECOND, processes=(FakeProcess(1),), persistence=0, power_limit_w=500, clocks_limited=1)
    gpus = (FakeGpu(uuid=FIRST), spoiled)
    sound = on(gpus, "doctor", "--gpus", "0", "--json")
    assert sound.returncode == 0, sound.stdout
    assert json.loads(sound.stdout)["sound"] is True
    assert {"driver", "GPU 0 energy counter", "leases", "CPU load"} <= checks_of(sound).keys()
    done = on(gpus, "doctor", "--gpus", "1,7")
    assert done.returncode == 3
    for line in (
        "fail    GPU 1 in use: process 1 (root, ",
        "warn    GPU 1 power limit: 500 W, the board's default is 700 W",
        "fail    GPUs chosen: there is no GPU 7",
        "→ as root: nvidia-smi -i 1 -pm 1",
        "a measurement here would not be sound: GPUs chosen, GPU 1 in use",
    ):
        assert line in done.stdout


@pytest.mark.parametrize("verb", [("gpus",), ("doctor",), ("plan", "--backend", "fake", "--model", "shape:tiny-llama")])
def test_a_driver_that_is_old_or_answers_with_errors_costs_a_line_and_no_traceback(
    on: Called, verb: tuple[str, ...]
) -> None:
    """Without the newest process lists or a clean end all is shown; GPUs that cannot be counted are refused with 3."""
    newest = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
    for faults in ({"lacking": newest}, {"shutdown_error": 999}):
        done = on((FakeGpu(uuid=FIRST),), *verb, **faults)
        assert "Unknown Error" not in done.stdout + done.stderr
    done = on((FakeGpu(uuid=FIRST),), *verb, count_error=999)
    assert (done.returncode, "Unknown Error" in done.stdout + done.stderr) == (3, True)


def test_a_busy_gpu_that_would_not_be_chosen_spoils_nothing(on: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are shared; where all are busy there is nothing to choose."""
    done = on((BUSY, FakeGpu(uuid=SECOND)), "doctor", "--json")
    assert done.returncode == 0, done.stdout
    checks = checks_of(done)
    assert (checks["GPUs chosen"][0], checks["GPUs chosen"][1].split()[0]) == ("pass", "1")
    assert (checks["GPU 0 in use"][0], "process 1 (root," in checks["GPU 0 in use"][1]) == ("warn", True)
    done = on((BUSY,), "doctor", "--json")
    status, figure = checks_of(done)["GPUs chosen"]
    assert (done.returncode, status, "process 1 (root," in figure) == (3, "fail", True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status, figure = checks_of(on((FakeGpu(uuid=FIRST),), "doctor", "--json"))["GPUs chosen"]
    assert (status, "CUDA_VISIBLE_DEVICES=" in figure) == ("fail", True)


def test_a_driver_that_dies_under_the_doctor_fails_a_check_and_the_others_still_run(
    on: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of GPUs and the meter."""

    def broken(_: NvmlSource) -> str | None:
        raise NvmlError(pynvml.NVML_ERROR_UNKNOWN)

    monkeypatch.setattr(NvmlSource, "open", broken)
    done = on((FakeGpu(uuid=FIRST),), "doctor", "--json")
    assert done.returncode == 3, done.stderr
    statuses = {name: status for name, (status, _) in checks_of(done).items()}
    found = [statuses[name] for name in ("GPU 0 energy counter", "GPU 0 in use", "shared memory")]
    assert found == ["fail", "pass", "pass"]


def test_the_doctor_asks_the_backend_in_its_own_environment(on: Called) -> None:
    """A real runner is started and stopped; a backend that does not exist is a finding."""
    asked = ("--backend", "fake", "--gpus", "0", "--runner-python", sys.executable, "--json")
    checks = checks_of(on((FakeGpu(uuid=FIRST), FakeGpu(uuid=SECOND)), "doctor", *asked))
    assert checks["fake"][0] == "pass"
    assert checks["runner's clock"][1].startswith("the host's")
    # The test's interpreter has no torch, which is what a runner on a GPU would need.
    status, figure = checks["CUDA in the runner"]
    assert (status, "torch" in figure) == ("fail", True)


def test_a_busy_gpu_is_refused_before_anything_starts(on: Called, tmp_path: Path) -> None:
    """With the process and its owner; `plan` says the same."""
    for verb in ("run", "plan"):
        done = on((BUSY,), verb, "--backend", "fake", "--model", "shape:tiny-llama")
        assert (done.returncode, "process 1 (root," in done.stderr) == (3, True), done.stderr
    assert not (tmp_path / "work/results").exists()


def test_a_plan_refuses_what_cannot_fit_and_says_how_much_the_rest_takes(on: Called, tmp_path: Path) -> None:
    """On simulated GPUs of 85.5 GB; a sweep's larger batches are judged by themselves."""
    h100 = FakeGpu(uuid=FIRST, name="NVIDIA H100 80GB HBM3", memory_total_bytes=81559 << 20)
    refused = on((h100,), "plan", "--backend", "vllm", "--model", "shape:llama-3.1-70b")
    assert refused.returncode == 3, refused.stderr
    assert all(value in refused.stderr for value in ("shape:llama-3.1-70b", "141.1 GB"))
    defaults = {"backend": "vllm", "model": "shape:llama-3.1-8b", "gpus": [0]}
    text = json.dumps({"defaults": defaults, "sweep": {"workload.batch_size": [1, 1000]}})
    (tmp_path / "work/study.yaml").write_text(text)
    planned = on((h100,), "plan", "study.yaml")
    assert planned.returncode == 3
    assert any("shape:llama-3.1-8b" in line and ": fits: " in line for line in planned.stdout.splitlines())
    assert planned.stderr.startswith("wattdock: batch_size=1000: shape:llama-3.1-8b ")
    assert planned.stderr.count("\n") == 1
