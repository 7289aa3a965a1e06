"""Where a server that runs already computes, and which GPUs are its own."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from make.openai_server import behaving
from refused import raises
from seams.host import GpuActivity
from seams.planning import find_server

from wattdock.config import load_study
from wattdock.errors import Cause, PreflightError
from wattdock.host import Gpu, GpuInventory, GpuProcess
from wattdock.planning import ExecutionPlan, GpuChoice, preflight

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from wattdock.config import ExperimentConfig

# An address that no machine has. Source: RFC 5737.
ELSEWHERE = "http://192.0.2.1:8000"
FAR, NEAR = "GPU-000", "GPU-111"


def experiment(url: str, **settings: Any) -> ExperimentConfig:
    return load_study({"url": url, **settings}, {}).experiments[0]


def inventory(*pids: int) -> GpuInventory:
    """Return two GPUs, the second with processes of these pids and 30 GB in use."""
    nothing = GpuActivity(None, None, None, None, None, processes=())
    theirs = tuple(GpuProcess(pid, "compute", 30 * 10**9) for pid in pids)
    gpus = (Gpu(index=0, uuid=FAR, name="H200"), Gpu(index=1, uuid=NEAR, name="H200", vram_used_bytes=30 * 10**9))
    busy = GpuActivity(None, None, None, None, None, processes=theirs)
    return GpuInventory(gpus, activity={FAR: nothing, NEAR: busy})


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of a socket on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://localhost:{listening.getsockname()[1]}"


def test_the_gpus_of_a_server_are_those_of_its_processes_which_occupy_none(url: str) -> None:
    """And another program on them does."""
    gpus = inventory(os.getpid())
    server, config = find_server(experiment(url), gpus)
    assert (server.unmeasured, os.getpid() in server.pids()) == ("", True)
    assert [gpu.uuid for gpu in GpuChoice(config, gpus.without(server.pids())).gpus()] == [NEAR]
    crowded = inventory(os.getpid(), 1)
    server, config = find_server(experiment(url), crowded)
    with raises(PreflightError, "process 1 "):
        GpuChoice(config, crowded.without(server.pids())).gpus()


def test_gpus_that_are_named_count_where_no_process_tells(url: str) -> None:
    """As of a server in a container: then what runs on them is the server's."""
    gpus = inventory(1)
    server, config = find_server(experiment(url, gpus=[1]), gpus)
    assert [gpu.uuid for gpu in GpuChoice(config, gpus.without(server.pids())).gpus()] == [NEAR]
    server, _ = find_server(experiment(url), gpus)
    assert f"(listening: {os.getpid()})" in server.unmeasured


def test_gpus_that_leave_out_one_of_the_server_are_refused(url: str) -> None:
    """Joules of half of its GPUs would pass for those of its tokens."""
    gpus = inventory(os.getpid())
    both = replace(gpus, activity={FAR: gpus.activity[NEAR], NEAR: gpus.activity[NEAR]})
    with raises(PreflightError, "gpus: [1] leaves out GPU 0", cause=Cause.INVALID_VALUE):
        find_server(experiment(url, gpus=[1]), both)
    _, config = find_server(experiment(url, gpus=[1, 0]), both)
    assert config.gpus == [1, 0]
    with raises(PreflightError, "gpus: [0] leaves out GPU 1", cause=Cause.INVALID_VALUE):
        find_server(experiment(url, gpus=[0]), gpus)


@pytest.mark.parametrize("settings", [{"gpus": [1]}, {"meter": "rapl"}, {"accelerator": "cuda"}])
def test_on_another_host_speed_alone_is_measured(settings: dict[str, Any]) -> None:
    """And whoever asks for joules there is told."""
    server, config = find_server(experiment(ELSEWHERE), inventory(os.getpid()))
    assert (server.unmeasured, server.pids()) == ("the server runs on another host", frozenset())
    assert GpuChoice(config, inventory()).gpus() == ()
    [name] = settings
    with raises(PreflightError, f"{name}: ", "energy cannot be measured: the server runs on another host"):
        find_server(experiment(ELSEWHERE, **settings), inventory())


def test_a_port_whose_process_nobody_sees_says_what_to_do() -> None:
    """Another user's, or one in a container."""
    server, _ = find_server(experiment("http://127.0.0.1:1"), inventory())
    assert server.unmeasured == "this user sees no process that listens at port 1; name its GPUs with gpus"


@pytest.mark.parametrize(("behaviour", "found"), [("", ExecutionPlan), ("html", PreflightError)])
def test_a_server_is_asked_once_for_a_whole_study(behaviour: str, found: type, tmp_path: Path) -> None:
    """One that hangs would be waited for once for each length of prompts."""
    with behaving(behaviour, stderr=subprocess.PIPE) as (url, process):
        lengths = {"workload.prompts.input_tokens": [8, 16, 32]}
        study = load_study(
            {"defaults": {"url": url, "workload": {"prompts": {"source": "synthetic"}}}, "sweep": lengths}, {}
        )
        plans = preflight(study.experiments, output_dir=tmp_path, home=tmp_path)
        process.kill()
        assert process.stderr
        assert process.stderr.read().count("GET /v1/models") == 1
    assert [type(plan) for plan in plans] == [found] * 3
