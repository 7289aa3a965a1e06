"""How a runner's container is described to an engine."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refused import raises
from seams.launch import Bind, Engine, Image, RunnerContainer, create_arguments, explained, model_binds
from unprivileged import OTHER_UID

from wattdock.config import ContainerSpec
from wattdock.errors import Cause, LaunchError
from wattdock.launch import LaunchSpec

DOCKER = Engine("unix:///x", "28.0")
ROOTLESS = Engine("unix:///x", "28.0", rootless=True)
UNLIMITED = ContainerSpec()


def described(
    engine: Engine = DOCKER, *, limits: ContainerSpec = UNLIMITED, gpus: tuple[str, ...] = ()
) -> dict[str, Any]:
    spec = LaunchSpec("fake", Path("/r"), Path("/l"), gpu_uuids=gpus)
    return create_arguments(
        spec,
        Image(engine, "name", "sha256:id", None),
        user=(1500, 1600),
        binds=[Bind(Path("/host"), "/inside")],
        labels={"a": "b"},
        limits=limits,
        environ={},
    )


@pytest.mark.parametrize(("engine", "user"), [(DOCKER, "1500:1600"), (ROOTLESS, "0:0")])
def test_a_container_is_the_caller_behind_walls_whatever_the_engine(engine: Engine, user: str) -> None:
    """What it writes belongs to the caller; no network, no capability, nothing writable but what is given."""
    arguments = described(engine)
    assert arguments["user"] == user
    assert (arguments["network_mode"], arguments["cap_drop"], arguments["read_only"]) == ("none", ["ALL"], True)
    assert arguments["security_opt"] == ["no-new-privileges"]
    # A name may point to another image an hour later.
    assert (arguments["image"], arguments["labels"]) == ("sha256:id", {"a": "b"})
    [mount] = arguments["mounts"]
    assert (mount["Source"], mount["Target"], mount["Type"], mount["ReadOnly"]) == ("/host", "/inside", "bind", True)
    assert arguments["command"] == ["--backend", "fake", "--socket", "/run/wattdock/r.sock"]


def test_gpus_are_arguments_for_by_uuid_in_the_order_given() -> None:
    """Indices are another thing on every side of the wall."""
    arguments = described(gpus=("GPU-b", "GPU-a"))
    [request] = arguments["device_requests"]
    assert request["DeviceIDs"] == ["GPU-b", "GPU-a"]
    assert request["Capabilities"] == [["gpu", "compute", "utility"]]
    assert arguments["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert described()["device_requests"] is None
    # NVIDIA's images carry NVIDIA_VISIBLE_DEVICES=all.
    assert described()["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_limits_are_bytes_and_no_swap_and_absent_unless_set() -> None:
    """Swap would make a measurement one of the disk."""
    arguments = described(limits=ContainerSpec(memory_gb=2, cpus=1.5, shm_gb=1, tmp_gb=3))
    assert (arguments["mem_limit"], arguments["memswap_limit"], arguments["nano_cpus"]) == (
        2 * 10**9,
        2 * 10**9,
        1_500_000_000,
    )
    assert (arguments["shm_size"], arguments["tmpfs"]) == (
        10**9,
        {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={3 * 10**9}"},
    )
    assert (described()["mem_limit"], described()["nano_cpus"]) == (None, None)


def test_processes_and_threads_are_always_limited() -> None:
    """A model's own code that starts them without end stops itself, not the machine, whose ids are for everybody."""
    assert described()["pids_limit"] == 16_384
    assert described(limits=ContainerSpec(pids=7))["pids_limit"] == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="two real users need root")
def test_a_model_s_links_are_mounted_unless_they_lead_to_what_their_maker_does_not_own(tmp_path: Path) -> None:
    """The engine follows them as root: a neighbour's model would get the caller's files into a container."""
    model, blob = tmp_path / "model", tmp_path / "blob"
    (model / "onnx").mkdir(parents=True)
    (model / "onnx/a.json").write_text("{}")
    assert model_binds(model) == [Bind(model, "/model")]
    blob.write_text("{}")
    (model / "config.json").symlink_to(blob)
    (model / "gone").symlink_to("nowhere")
    assert model_binds(model) == [
        Bind(blob, "/model/config.json"),
        Bind(model / "onnx/a.json", "/model/onnx/a.json"),
    ]
    os.lchown(model / "config.json", OTHER_UID, OTHER_UID)
    with raises(LaunchError, OTHER_UID, cause=Cause.OTHERS_COULD_WRITE):
        model_binds(model)


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "nvidia-ctk runtime configure"),
        ("unknown or invalid runtime name: nvidia", "nvidia-ctk runtime configure"),
        ("failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0: unknown", "nvidia-ctk cdi generate"),
        ("nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown", "restart"),
        ("No such image: sha256:0", "make images"),
    ],
)
def test_an_engine_s_error_names_what_helps(said: str, remedy: str) -> None:
    """In one line, however many the engine writes."""
    line = explained(OSError(f"{said}\n"))
    assert line.startswith(f"{said}; ")
    assert remedy in line


@pytest.mark.parametrize(
    ("told_at", "words", "lacked"),
    [
        (0, "ran out of memory and was killed by the kernel (exit code 137), at most 20.0 MB; raise", True),
        (3, "ran out of memory and was killed by the kernel (exit code 137), at most 20.0 MB; raise", True),
        (None, "was killed by SIGKILL (out of memory? at most 20.0 MB; raise container.memory_gb if so)", False),
    ],
)
def test_an_engine_may_tell_of_memory_with_a_containers_end_later_or_never(
    told_at: int | None, words: str, lacked: bool, tmp_path: Path
) -> None:
    """The two are events of their own, in either order; one of them can be lost."""
    reloads = iter(range(1000))
    attrs: dict[str, Any] = {"HostConfig": {"Memory": 20_000_000}}

    def reload() -> None:
        told = told_at is not None and next(reloads) >= told_at
        attrs["State"] = {"Running": False, "ExitCode": 137, "OOMKilled": told}

    gone = SimpleNamespace(remove=lambda **_: None, close=lambda: None, communicate=lambda _: None)
    container = SimpleNamespace(id="x", attrs=attrs, reload=reload, logs=lambda stream: [b"log"], remove=gone.remove)
    folder = SimpleNamespace(path=tmp_path, remove=lambda: None)
    spec = LaunchSpec("fake", Path("/r"), tmp_path / "log")
    runner: Any = RunnerContainer
    runner = runner(gone, container, gone, folder, spec)
    assert words in runner.exit_reason()
    assert runner.lacked_memory is lacked
