"""`wattdock run --url` from outside: a server that runs already, on simulated GPUs of known power."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fake_nvml
import pytest
from command import REPO, check_of, on_gpus, one_line
from contract.runner_process import VLLM_PYTHON
from fake_nvml import FakeGpu, FakeProcess, constant
from make.openai_server import KEY
from unprivileged import popen_as_user

from wattdock.host import processes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from command import Command

CONFIG, PREFLIGHT, RUNNER = 2, 3, 5
SHORT = ("--batch-size", "2", "--max-output-tokens", "20", "--passes", "1", "--set", "warmup.passes=0")
NEAR, FAR = fake_nvml.uuid_of(1), fake_nvml.uuid_of(2)

pytestmark = [pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no environment with aiohttp at {VLLM_PYTHON}")]


@pytest.fixture
def client(wattdock: Command) -> Command:
    return replace(wattdock, runner_python=VLLM_PYTHON)


@contextmanager
def behaving(client: Command, behaviour: str) -> Iterator[tuple[str, int]]:
    """Yield the address of a server that the same user has started, and its process."""
    words: list[str | Path] = [sys.executable, REPO / "tests/make/openai_server.py", "0", behaviour]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with popen_as_user(words, env=client.env(), cwd=client.folder, **how) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            [pid] = processes.listening_pids(port)
            yield f"http://127.0.0.1:{port}", pid
        finally:
            process.kill()


def test_a_server_on_this_machine_has_the_joules_of_the_gpus_that_its_processes_are_on(client: Command) -> None:
    """300 W for as long as the pass lasted, though another GPU is free; nobody is foreign there, and its lease held."""
    with behaving(client, "slow") as (url, pid):
        busy = FakeGpu(uuid=NEAR, profile=(constant(300),), processes=(FakeProcess(pid, memory_bytes=30_000_000_000),))
        env = on_gpus(client, FakeGpu(uuid=FAR), busy)
        result = client.measured("--url", url, *SHORT, "--min-requests", "8", env=env)
        declared = ("--set", f"url.environment=me/vllm@sha256:{'0' * 64}")
        again = client.measured("--url", url, *SHORT, *declared, env=env)
    energy, environment = result["energy"], result["environment"]
    assert energy["total_j"] == pytest.approx(300 * result["performance"]["duration_s"], abs=4 * energy["timing_j"] + 1)
    assert (environment["gpu_uuids"], environment["leased"], environment["meter"]) == ([NEAR], [NEAR], "nvml")
    assert energy["bystander_j"][FAR] > 0
    assert check_of(result, "processes on the GPUs")[0] == "pass"
    assert result["performance"]["output_tokens"] == 8 * 20
    assert (environment["model"]["kind"], environment["model"]["name"]) == ("served", "stand-in")
    assert check_of(result, "software") == (
        "fail",
        "a server that was running: its image or packages are not declared",
    )
    # A checkout with changes of its own is no commit's.
    assert check_of(again, "software")[0] == ("fail" if again["environment"]["wattdock_dirty"] else "warn")


def test_without_a_gpu_of_its_own_speed_is_measured_and_a_key_is_stored_nowhere(client: Command) -> None:
    """The line says why; and the key is in no file, though the server asks for it."""
    with behaving(client, "key") as (url, pid):
        done = client("run", "--url", url, *SHORT, env=on_gpus(client, FakeGpu()) | {"WATTDOCK_API_KEY": KEY})
    assert done.returncode == 0, done.stderr
    assert f"not measured: no GPU here holds a process of the server (listening: {pid})" in done.stdout
    [result] = client.results()
    assert result["energy"]["total_j"] is None
    assert result["performance"]["output_tokens_per_s"] > 0
    files = [file for file in client.home.rglob("*") if file.is_file()]
    assert [file for file in files if KEY.encode() in file.read_bytes()] == []
    assert KEY not in done.stdout + done.stderr


def test_a_server_that_was_just_started_is_waited_for(client: Command) -> None:
    """With a line that says so; then it is measured as any."""
    with behaving(client, "loads") as (url, _):
        done = client("run", "--url", url, *SHORT)
    assert (done.returncode, done.stderr.count("is loading its model")) == (0, 1), done.stderr
    [result] = client.results()
    assert result["performance"]["output_tokens"] > 0


@pytest.mark.parametrize(
    ("behaviour", "more", "code", "words"),
    [
        ("dies", (), RUNNER, "the server is gone: "),
        ("shorter", ("--set", "workload.ignore_eos=true"), RUNNER, "the server ignores ignore_eos"),
        ("", ("--model", "owner/other"), CONFIG, "has stand-in, not owner/other"),
        ("", ("--backend", "vllm"), CONFIG, "--url: a server that runs already has its own engine"),
        ("", ("--dtype", "float16"), CONFIG, "--dtype"),
        ("", ("--set", "url.max_num_seqs=4"), CONFIG, "max_num_seqs"),
        ("", ("--prompts", "synthetic"), CONFIG, "synthetic"),
        ("html", (), PREFLIGHT, "with no JSON"),
        (
            "loading",
            ("--set", "timeouts.load_s=0.1"),
            PREFLIGHT,
            "it loads its model, or hangs, for 0.1 s; see its log, ",
        ),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_a_documented_code(
    client: Command, behaviour: str, more: tuple[str, ...], code: int, words: str
) -> None:
    """And no traceback."""
    with behaving(client, behaviour) as (url, _):
        done = client("run", "--url", url, *SHORT, *more, "--quiet")
    one_line(done, code, words)
