"""vLLM behind its own HTTP server: its processes' death, what it refuses, and what it tells of its own times."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import VLLM_PYTHON, command_of, ids_prompt, refusal, workload
from contract.subjects import VLLM_SERVED

from wattdock.launch.keeper import descendants
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint

pytestmark = pytest.mark.skipif(not VLLM_PYTHON.exists(), reason=f"no vLLM environment at {VLLM_PYTHON}")
ARGS: dict[str, object] = {"serve": True, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 26}
REPLICAS = {**ARGS, "data_parallel_size": 2}


def below(runner: Runner) -> dict[int, str]:
    return {pid: command_of(pid) for pid in descendants(runner.process.pid)}


def test_the_server_s_own_times_and_the_client_s_cost_are_of_the_pass(
    runners: SharedRunners, checkpoint: Checkpoint
) -> None:
    """By the server's clock the first token comes sooner than the client sees it, and tokens at the same pace."""
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=ARGS)
    result = runner.generate(workload(max_output_tokens=40), [ids_prompt(10)] * 2)
    serving = result.summary.serving
    waits_s = [(one.first_token_ns - one.submitted_ns) / 1e9 for one in result.requests]
    assert 0 < serving.server_ttft_s < sum(waits_s) / len(waits_s)
    gaps_s = [gap_ns / 1e9 for one in result.requests for gap_ns in one.token_gaps_ns]
    assert len(gaps_s) == 2 * 39
    assert serving.server_itl_s == pytest.approx(sum(gaps_s) / len(gaps_s), rel=0.3)
    assert 0 < serving.client_cpu_share < 1


def test_requests_that_the_cache_cannot_hold_together_are_refused(
    runners: SharedRunners, checkpoint: Checkpoint
) -> None:
    """The server would let one wait, and nobody would see it in the figures."""
    small = {**ARGS, "num_gpu_blocks_override": 4, "block_size": 32, "max_model_len": 64}
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=small)
    code, detail = runner.refused_pass(workload(in_flight=2, max_output_tokens=30), [ids_prompt(20)] * 2)
    assert code == "RESOURCE_EXHAUSTED"
    assert "2 requests in flight need 4 blocks of KV cache at their full length, and there are 3" in detail


def test_an_argument_that_vllm_refuses_is_named_by_its_server(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """Nothing of it is left."""
    runner = runners.bare(VLLM_SERVED.name)
    code, detail = runner.refused_load(checkpoint.folder, engine_args={**ARGS, "max_model_len": 1 << 30})
    assert code == "INVALID_ARGUMENT"
    assert "max_model_len" in detail
    assert [command for command in below(runner).values() if "wattdock_vllm_server" in command] == []


def test_replicas_each_have_a_server(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """And the pass tells the busiest client."""
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=REPLICAS)
    servers = [pid for pid, command in below(runner).items() if "wattdock_vllm_server" in command]
    assert len(servers) == 2
    result = runner.generate(workload(arrival=pb.ARRIVAL_CLOSED, in_flight=2), [ids_prompt(5)] * 4)
    assert len(result.summary.replicas) == 2
    assert result.summary.serving.client_cpu_share > 0


@pytest.mark.parametrize(("name", "args"), [("EngineCore", REPLICAS), ("wattdock_vllm_server", ARGS)])
def test_the_death_of_engine_or_server_ends_the_pass_and_leaves_no_process(
    runners: SharedRunners, checkpoint: Checkpoint, name: str, args: dict[str, object]
) -> None:
    """Whether a signal or the kernel ended it; an engine's death ends its server, and the other replica's."""
    runner, _ = runners.loaded(VLLM_SERVED.name, checkpoint.folder, engine_args=args)
    call = runner.start_long()
    victim = next(pid for pid, command in below(runner).items() if name in command)
    os.kill(victim, signal.SIGKILL)
    code, detail = refusal(call)
    assert code == "ABORTED"
    assert "the engine's server is gone" in detail
    assert name == "EngineCore" or "it ended with code -9" in detail
    runner.unload()
    assert [command for command in below(runner).values() if "EngineCore" in command] == []
