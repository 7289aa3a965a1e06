"""The GPUs that llama.cpp sees, by their UUIDs.

llama.cpp names a GPU by its place on the PCI bus; CUDA's driver, which llama.cpp computes with, gives the UUID to it.
Run as a program, it prints the version of CUDA and the number of GPUs.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any
from uuid import UUID

import xllamacpp

from wattdock_runner.gpus import nvml_uuid

DRIVER = "libcuda.so.1"


def visible_gpus() -> list[str]:
    """Return the UUID of each GPU in llama.cpp's order.

    A build of llama.cpp for CPUs sees none. This opens a context on each GPU, as loading a model does.

    Raises:
        OSError: There is no driver, or it does not know a GPU.

    Source: ggml_backend_cuda_device_get_props in ggml/src/ggml-cuda/ggml-cuda.cu of llama.cpp: `device_id` is the place
    on the bus. CUDA driver API: cuDeviceGetByPCIBusId, cuDeviceGetUuid_v2.
    """
    is_gpu = xllamacpp.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU
    return [_uuid(device["device_id"]) for device in xllamacpp.get_device_info() if device["type"] == is_gpu]


def cuda_version() -> str:
    """Return the newest version of CUDA that the driver serves, such as "13.0".

    Source: CUDA driver API, cuDriverGetVersion: 1,000 × major + 10 × minor.
    """
    version = ctypes.c_int()
    _driver("cuDriverGetVersion", ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _uuid(bus_id: str) -> str:
    device, octets = ctypes.c_int(), ctypes.create_string_buffer(16)
    _driver("cuDeviceGetByPCIBusId", ctypes.byref(device), bus_id.encode())
    _driver("cuDeviceGetUuid_v2", octets, device)
    return nvml_uuid(UUID(bytes=octets.raw))


def _driver(function: str, *arguments: Any) -> None:
    if code := getattr(ctypes.CDLL(DRIVER), function)(*arguments):
        raise OSError(f"{function} of {DRIVER} ended with code {code}")


if __name__ == "__main__":
    sys.stdout.write(f"{cuda_version()} {len(visible_gpus())}\n")
