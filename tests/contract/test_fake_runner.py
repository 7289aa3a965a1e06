"""What the shared part of a runner promises, shown with the fake backend: faults, sizes, its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import (
    FAKE_FOLDER,
    ids_prompt,
    load_request,
    refusal,
    runner_environment,
    workload,
)
from launch.standins import exists, wait_until

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners

MIB = 1 << 20


@pytest.fixture
def fake(runners: SharedRunners) -> Runner:
    """Return a fake runner that has nothing loaded."""
    return runners.bare("fake")


def test_twenty_megabytes_go_each_way_in_chunks(fake: Runner, model_path: Path) -> None:
    """No message comes near gRPC's default limit of 4 MB, whichever way."""
    fake.load(model_path, engine_args={"tokens_per_step": 100_000, "step_s": 0})
    prompts = [pb.Prompt(text=f"{i} " * 50_000) for i in range(110, 220)]
    sent_bytes = sum(prompt.ByteSize() for prompt in prompts)
    result = fake.generate(workload(in_flight=10, max_output_tokens=75_000, return_token_ids=True), prompts)
    assert sent_bytes > 20e6
    assert sum(result.chunk_bytes) > 20e6
    assert max(result.chunk_bytes) < MIB + 100
    assert result.summary.output_tokens == 110 * 75_000
    assert result.summary.prompt_tokens == 110 * 50_000
    assert sum(len(record.output_ids.ids) for record in result.requests) == result.summary.output_tokens


def test_running_out_of_memory_in_a_pass_is_resource_exhausted_and_survivable(fake: Runner, model_path: Path) -> None:
    """The pass fails by name, and the next one runs."""
    fake.load(model_path)
    assert fake.refused_pass(workload(), [pb.Prompt(text="fault:oom")])[0] == "RESOURCE_EXHAUSTED"
    assert fake.generate(workload(), [ids_prompt(3)]).summary.output_tokens == 5


def test_unexpected_error_is_one_line_for_the_client_and_a_traceback_in_the_log(fake: Runner, model_path: Path) -> None:
    """The client reads what happened; whoever repairs the runner reads where."""
    before = len(fake.log.read_text())
    code, detail = fake.refused_load(model_path, engine_args={"load_fault": "raise"})
    assert code == "INTERNAL"
    assert detail.startswith("RuntimeError: ")
    assert "\n" not in detail
    log = fake.log.read_text()[before:]
    assert "Traceback" in log
    assert "Load: INTERNAL: " in log


def test_failed_load_leaves_nothing_loaded(fake: Runner, model_path: Path) -> None:
    """After a load that failed another one may follow at once."""
    fake.refused_load(model_path, engine_args={"load_fault": "oom"})
    fake.load(model_path)
    assert fake.generate(workload(), [ids_prompt(3)]).summary.requests == 1


def test_cancelled_load_leaves_nothing_loaded(fake: Runner, model_path: Path) -> None:
    """A model that nobody waits for is dropped, and the next load works."""
    call = fake.stub.Load(load_request(model_path, engine_args={"load_s": 0.5}))
    next(call)
    call.cancel()
    fake.load(model_path)


def test_socket_is_private(fake: Runner) -> None:
    """Nobody but the owner can connect."""
    assert fake.socket.stat().st_mode & 0o077 == 0


def test_runner_dies_with_the_process_that_started_it(tmp_path: Path, model_path: Path) -> None:
    """A killed launcher leaves no runner, even one that is stopped in a pass."""
    socket = tmp_path / "r.sock"
    command = [sys.executable, "-m", "wattdock_runner", "--backend", "fake", "--socket", str(socket)]
    launcher = f"import subprocess, time; p = subprocess.Popen({command!r}); print(p.pid, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", launcher], env=runner_environment(FAKE_FOLDER, ""), stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until(socket.exists)
        os.kill(pid, signal.SIGSTOP)
        parent.kill()
    wait_until(lambda: not exists("pid", str(pid)))


def test_unknown_backend_is_one_line_and_status_two(tmp_path: Path) -> None:
    """The missing module stands in the message; there is no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "wattdock_runner", "--backend", "nosuch", "--socket", str(tmp_path / "s")],
        env=runner_environment(FAKE_FOLDER, ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "wattdock_nosuch" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_request_beyond_the_prompts_announced_cancels_the_pass(fake: Runner, model_path: Path) -> None:
    """Its prompts would silently not be served; too few, or too many in one piece, are refused before the pass."""
    fake.load(model_path)
    two_prompts = [ids_prompt(10), ids_prompt(50)]
    endless = pb.GenerateRequest(workload=workload(min_duration_s=600.0))
    endless.workload.prompts = 2
    two = pb.GenerateRequest(prompts=pb.PromptChunk(prompts=two_prompts))
    three = pb.GenerateRequest(prompts=pb.PromptChunk(prompts=[*two_prompts, ids_prompt(3)]))
    one = pb.GenerateRequest(prompts=pb.PromptChunk(prompts=two_prompts[:1]))
    assert refusal(fake.stub.Generate(iter([endless, two, two])))[0] == "CANCELLED"
    for sent, came in (([one], 1), ([three], 3), ([one, three], 4)):
        code, detail = refusal(fake.stub.Generate(iter([endless, *sent])))
        assert (code, detail) == ("INVALID_ARGUMENT", f"the workload announced 2 prompts, and {came} came")
