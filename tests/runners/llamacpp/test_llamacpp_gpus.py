"""What llama.cpp's runner says of a GPU, with stand-ins for CUDA's driver and for the build that sees a GPU."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import ROOT, running
from contract.subjects import ONE_THREAD

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from contract.runner_process import Runner
    from runners.checkpoints import Checkpoint

FOLDER = ROOT / "runners/llamacpp"
PYTHON = FOLDER / ".venv/bin/python"
GPU = "GPU-00112233-4455-6677-8899-aabbccddeeff"
# It knows one GPU, by its place on the bus.
DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
int cuDeviceGetByPCIBusId(int *device, const char *place) { *device = 7; return strcmp(place, "0000:1b:00.0"); }
int cuDeviceGetUuid_v2(unsigned char *octets, int device) {
    for (int i = 0; i < 16; i++) octets[i] = 17 * i;
    return device != 7;
}
"""
# The build for CPUs, which computes; it also names a GPU.
BUILD = """
import importlib.util, sys
from importlib.machinery import PathFinder
spec = PathFinder.find_spec("xllamacpp", [folder for folder in sys.path if folder != {folder!r}])
real = sys.modules["xllamacpp"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)
others = real.get_device_info()
kind = real.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU
gpu = dict(description="NVIDIA H200", type=kind, device_id="0000:1b:00.0", memory_total=150 << 30)
real.get_device_info = lambda: [gpu, *others]
"""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    if not PYTHON.exists():
        pytest.skip(f"no llamacpp environment at {PYTHON}")
    (tmp_path / "xllamacpp.py").write_text(BUILD.format(folder=str(tmp_path)))
    library = ("-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), "-x", "c", "-")
    subprocess.run(["gcc", *library], input=DRIVER, text=True, check=True)
    with running("llamacpp", FOLDER, PYTHON, gpus="0", stand_in=tmp_path, LD_LIBRARY_PATH=str(tmp_path)) as runner:
        yield runner


def test_a_model_on_a_gpu_says_on_which_and_how_much_of_it(runner: Runner, checkpoint: Checkpoint) -> None:
    """All of its two layers unless asked for fewer: the output goes first. Other GPUs than it sees are refused."""
    for asked, layers in (({}, 2), ({"n_gpu_layers": 2}, 1), ({"n_gpu_layers": 99}, 2)):
        arguments = {**ONE_THREAD, "n_parallel": 2, "n_ctx": 512, **asked}
        loaded, _ = runner.load(checkpoint.folder, gpu_uuids=[GPU], engine_args=arguments)
        environment = loaded.environment
        assert environment.visible_gpu_uuids == [GPU]
        assert environment.used_gpu_uuids == [GPU]
        assert json.loads(environment.parallelism_json) == {"kind": "none", "devices": {GPU: layers}}
        assert json.loads(loaded.effective_engine_args_json)["n_gpu_layers"] == asked.get("n_gpu_layers", -1)
        runner.unload()
    for gpus in ([], ["GPU-other"]):
        code, detail = runner.refused_load(checkpoint.folder, gpu_uuids=gpus, engine_args=ONE_THREAD)
        assert (code, f"sees [{GPU}]" in detail) == ("FAILED_PRECONDITION", True)
    code, detail = runner.refused_load(checkpoint.folder, gpu_uuids=[GPU, "GPU-other"], engine_args=ONE_THREAD)
    assert (code, "2 GPUs" in detail) == ("INVALID_ARGUMENT", True)


def test_diagnosis_says_what_llamacpp_sees(runner: Runner) -> None:
    """The driver's version of CUDA, and the number of GPUs; torch is not needed."""
    finding = runner.stub.Diagnose(pb.DiagnoseRequest()).findings[-1]
    assert (finding.name, finding.status, finding.value) == ("CUDA in the runner", "ok", "13.2, GPUs: 1")
