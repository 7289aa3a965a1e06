"""vLLM behind its own HTTP server: its processes' death, what it refuses, and what it tells of its own times."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import command_of, ids_prompt, load_request, refusal, workload
from contract.subjects import UNIPROC, VLLM_SERVED
from launch.standins import wait_until
from runners.checkpoints import VLLM_SERVED_ARGS as ARGS

from wattdock.errors import Cause

if TYPE_CHECKING:
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint


def test_the_client_s_gaps_and_cost_are_of_the_pass(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """A gap behind each token but the last, and a client that mostly waits."""
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=ARGS)
    result = runner.generate(workload(max_output_tokens=40), [ids_prompt(10)] * 2)
    serving = result.summary.serving
    assert sum(len(request.token_gaps_ns) for request in result.requests) == 2 * 39
    assert 0 < serving.client_cpu_share < 1


def test_requests_that_the_cache_cannot_hold_together_are_refused(
    runners: SharedRunners, checkpoint: Checkpoint
) -> None:
    """The server would let one wait, and nobody would see it in the figures."""
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=ARGS)
    refused = runner.refused_pass(workload(in_flight=4, max_output_tokens=400), [ids_prompt(20)] * 4)
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.KV_CACHE)
    assert all(words in refused[1] for words in ("56 blocks", " 39;"))


@pytest.mark.parametrize(
    ("killed", "executor"), [("wattdock_vllm_server", UNIPROC), ("EngineCore", "mp")], ids=["server", "engine"]
)
def test_the_death_of_a_server_or_its_engine_ends_the_pass_and_leaves_no_process(
    runners: SharedRunners, checkpoint: Checkpoint, killed: str, executor: str
) -> None:
    """A server looks for its engine each five seconds; the engine's worker may be a process of its own."""
    arguments = {**ARGS, "distributed_executor_backend": executor}
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=arguments)
    engine = runner.children("VLLM::")
    assert len(engine) == (2 if executor == "mp" else 1)
    call = runner.start_long()
    os.kill(runner.children(killed)[0], signal.SIGKILL)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("ABORTED", Cause.WORKER)
    assert (": a process of vLLM's engine died" in refused[1]) == (killed == "EngineCore")
    runner.unload()
    # No longer below the runner: their parent is dead.
    assert [command_of(pid) for pid in engine] == [""] * len(engine)


def test_the_death_of_an_engine_that_loads_ends_the_load_as_no_wrong_setting(
    runners: SharedRunners, checkpoint: Checkpoint
) -> None:
    """Its server says an error of its own, which names no cause."""
    runner = runners.bare(VLLM_SERVED.name)
    call = runner.stub.Load(load_request(checkpoint.folder, engine_args=ARGS))
    wait_until(lambda: bool(runner.children("VLLM::EngineCore")))
    os.kill(runner.children("VLLM::EngineCore")[0], signal.SIGKILL)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("ABORTED", Cause.WORKER)
    assert "a process of vLLM's engine died, and reported nothing" in refused[1]
    assert runner.children("wattdock_vllm_server") == []


def test_an_argument_that_vllm_refuses_is_named_by_its_server(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """Nothing of it is left."""
    runner = runners.bare(VLLM_SERVED.name)
    code, detail = runner.refused_load(checkpoint.folder, engine_args={**ARGS, "max_model_len": 1 << 30})
    assert code == "INVALID_ARGUMENT"
    assert "max_model_len" in detail
    assert runner.children("wattdock_vllm_server") == []
