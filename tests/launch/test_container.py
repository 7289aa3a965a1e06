"""How a runner's container is described to an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wattdock.config import ContainerSpec
from wattdock.launch.container import Bind, create_arguments
from wattdock.launch.engine import Engine, Image
from wattdock.launch.protocol import LaunchSpec
from wattdock.launch.runners import container_variables

DOCKER = Engine("unix:///x", "docker", "28.0")
ROOTLESS = Engine("unix:///x", "docker", "28.0", rootless=True)
UNLIMITED = ContainerSpec()


def described(
    engine: Engine = DOCKER, *, limits: ContainerSpec = UNLIMITED, gpus: tuple[str, ...] = ()
) -> dict[str, Any]:
    spec = LaunchSpec("fake", Path("/r"), Path("/l"), gpu_uuids=gpus, labels={"experiment": "e"})
    return create_arguments(
        spec,
        Image(engine, "name", "sha256:id", None),
        user=(1500, 1600),
        binds=(Bind(Path("/host"), "/inside"),),
        limits=limits,
        environ={},
    )


@pytest.mark.parametrize(("engine", "user"), [(DOCKER, "1500:1600"), (ROOTLESS, "0:0")])
def test_a_container_is_the_caller_behind_walls_whatever_the_engine(engine: Engine, user: str) -> None:
    """What it writes belongs to the caller; no network, no capability, nothing writable but what is given."""
    asked = described(engine)
    assert asked["user"] == user
    assert (asked["network_mode"], asked["cap_drop"], asked["read_only"]) == ("none", ["ALL"], True)
    assert asked["security_opt"] == ["no-new-privileges"]
    # A name may point to another image an hour later.
    assert (asked["image"], asked["labels"]) == ("sha256:id", {"wattdock.experiment": "e"})
    assert asked["command"] == ["--backend", "fake", "--socket", "/run/wattdock/r.sock"]


def test_gpus_are_asked_for_by_uuid_in_the_order_given() -> None:
    """Indices are another thing on every side of the wall."""
    asked = described(gpus=("GPU-b", "GPU-a"))
    [request] = asked["device_requests"]
    assert request["DeviceIDs"] == ["GPU-b", "GPU-a"]
    assert request["Capabilities"] == [["gpu", "compute", "utility"]]
    assert asked["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert "device_requests" not in described()
    # NVIDIA's images carry NVIDIA_VISIBLE_DEVICES=all.
    assert described()["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_limits_are_bytes_and_no_swap_and_absent_unless_set() -> None:
    """Swap would make a measurement one of the disk."""
    asked = described(limits=ContainerSpec(memory_gb=2, cpus=1.5, shm_gb=1, tmp_gb=3))
    assert (asked["mem_limit"], asked["memswap_limit"], asked["nano_cpus"]) == (2 * 10**9, 2 * 10**9, 1_500_000_000)
    assert (asked["shm_size"], asked["tmpfs"]) == (10**9, {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={3 * 10**9}"})
    assert (described()["mem_limit"], described()["nano_cpus"]) == (None, None)


def test_a_container_knows_who_it_is() -> None:
    """Programs ask for a user's name and home, and its uid is in no /etc/passwd."""
    ask = "import os, getpass, pathlib; os.setuid(54321); print(getpass.getuser(), pathlib.Path.home())"
    done = subprocess.run(
        [sys.executable, "-c", ask], env=described()["environment"], capture_output=True, text=True, check=False
    )
    if "PermissionError" in done.stderr:
        pytest.skip("becoming another user needs root")
    assert done.stdout == "runner /cache/home\n"


def test_of_the_callers_environment_engine_settings_alone_get_in_and_no_secret() -> None:
    """And ours win over the caller's."""
    environ = {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "NCCL_SOCKET_IFNAME": "eth0",
        "VLLM_API_KEY": "s",
        "HF_TOKEN": "s",
        "HOME": "/h",
    }
    inside = container_variables((), environ, cache="/cache")
    assert (inside["VLLM_LOGGING_LEVEL"], inside["NCCL_SOCKET_IFNAME"], inside["HOME"]) == (
        "DEBUG",
        "lo",
        "/cache/home",
    )
    assert not {"VLLM_API_KEY", "HF_TOKEN"} & inside.keys()
    assert (inside["HF_HUB_OFFLINE"], inside["TRANSFORMERS_OFFLINE"]) == ("1", "1")
