"""PyTorch over several processes, for real on the CPU: tensor parallel over gloo, and data-parallel replicas."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from contract.runner_process import PYTORCH_FOLDER, PYTORCH_PYTHON, output_ids, refusal, running, workload
from contract.subjects import SMALL_UNIFORM, write_config
from runners.checkpoints import NEW_TOKENS, run, token_prompts

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint, Reference


TENSOR: dict[str, Any] = {"tp_plan": "auto", "tp_size": 2}
DATA: dict[str, Any] = {"data_parallel_size": 2}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 32}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **EXPERTS}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **EXPERTS, "rope_theta": 10000.0}


def workers(runner: Runner) -> list[int]:
    return runner.children("wattdock_runner.worker")


def test_two_ranks_over_gloo_give_the_single_process_es_greedy_tokens(
    runners: SharedRunners, checkpoint: Checkpoint
) -> None:
    """Each rank holds half of every layer, and the tokens are those of plain transformers."""
    runner, loaded = runners.loaded("pytorch", checkpoint.folder, engine_args=TENSOR)
    split = json.loads(loaded.environment.parallelism_json)
    assert split == {"kind": "tensor", "tensor_parallel_size": 2, "devices": {}}
    effective = json.loads(loaded.effective_engine_args_json)
    assert (effective["tp_plan"], effective["tp_size"], effective["data_parallel_size"]) == ("auto", 2, 1)
    assert loaded.environment.weight_bytes == 4 * loaded.environment.parameter_count
    assert len(workers(runner)) == 2
    done = run(runner)
    assert output_ids(done) == checkpoint.continuations
    assert not any(request.HasField("replica") for request in done.requests)
    # What the first rank rendered is the pass's.
    assert run(runner, [pb.Prompt(text="hello")]).summary.rendered_sha256
    # One after the other, and for a time that one clock only can tell.
    repeated = run(runner, in_flight=1, min_duration_s=1.0)
    assert output_ids(repeated)[:4] == checkpoint.continuations
    assert repeated.summary.span.end_ns - repeated.summary.span.start_ns > 1e9
    # The first rank alone reads whether the client lets the pass end.
    asked = workload(in_flight=4, max_output_tokens=NEW_TOKENS, return_token_ids=True, min_duration_s=0.3)
    held, might_end_ns = runner.hold(asked, token_prompts(), 0.9)
    assert held.summary.span.end_ns > might_end_ns
    ids = output_ids(held)
    assert ids == checkpoint.continuations * (len(ids) // 4)
    assert held.heartbeats[-1].requests_submitted == held.summary.requests == len(ids)


def test_a_pass_that_was_cancelled_leaves_no_rank_once_unloaded(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """Ranks that stopped at different steps wait for each other for ever, and are ended; the tests below load again."""
    runner, _ = runners.loaded("pytorch", checkpoint.folder, engine_args=TENSOR)
    runner.start_long().cancel()
    runner.unload()
    assert workers(runner) == []


def test_ranks_draw_the_weights_that_one_process_draws(runners: SharedRunners, tmp_path: Path) -> None:
    """Random weights are equal whatever the split, so splits can be compared on a shape alone; experts too."""
    shape = write_config(tmp_path, dtype="float32", tie_word_embeddings=False, **MIXTRAL)
    answers = []
    for arguments in ({}, TENSOR):
        runner, loaded = runners.loaded("pytorch", shape, engine_args=arguments, random_weights=SMALL_UNIFORM)
        answers.append((loaded.environment.parameter_count, output_ids(run(runner))))
    assert answers[0] == answers[1]
    # The last ranks are killed: the others wait for a dead rank in vain and are ended.
    kill_mid_pass(runner, "rank")


def test_two_replicas_give_the_single_process_es_greedy_tokens(runners: SharedRunners, checkpoint: Checkpoint) -> None:
    """Each holds a copy; a replica that is killed ends the other."""
    runner, _ = runners.loaded("pytorch", checkpoint.folder, engine_args=DATA)
    done = run(runner)
    assert output_ids(done) == checkpoint.continuations
    assert {record.replica for record in done.requests} == {0, 1}
    kill_mid_pass(runner, "replica")


def kill_mid_pass(runner: Runner, called: str) -> None:
    """Kill the second process mid-pass: it is named, and none is left; the runner lives, to load again."""
    call = runner.start_long()
    victim = workers(runner)[1]
    os.kill(victim, signal.SIGKILL)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("ABORTED", Cause.WORKER)
    assert f"{called} 1 of 2 (pid {victim})" in refused[1]
    assert workers(runner) == []
    runner.unload()


def test_splits_that_cannot_be_are_refused(
    runners: SharedRunners, checkpoint: Checkpoint, reference: Reference
) -> None:
    """With the value seen and what is possible, before any process is started."""
    runner = runners.bare("pytorch")
    code, detail = runner.refused_load(checkpoint.folder, engine_args={"tp_plan": "auto"})
    assert (code, "at least 2 GPUs, not 0" in detail) == ("INVALID_ARGUMENT", True), detail
    assert workers(runner) == []
    message = "4 attention heads and 2 KV heads cannot be shared out among 3 ranks; possible: 1, 2"
    assert reference.splits == [None, message]


def test_a_model_of_which_transformers_splits_the_output_head_alone_is_refused(
    runners: SharedRunners, tmp_path: Path
) -> None:
    """Every rank would compute the whole decoder, and the row would call that tensor parallelism."""
    runner = runners.bare("pytorch")
    folder = write_config(tmp_path, dtype="float32", tie_word_embeddings=False, **GPT_OSS)
    code, detail = runner.refused_load(folder, engine_args=TENSOR, random_weights=SMALL_UNIFORM)
    assert code == "INVALID_ARGUMENT"
    assert all(words in detail for words in ("gpt_oss", "2 ranks", "100%", "device_map: auto"))
    assert workers(runner) == []


def test_ranks_that_cannot_exchange_data_say_so(checkpoint: Checkpoint) -> None:
    """Gloo on an interface that is not there fails as NCCL does on a broken link: by name, and with no rank left."""
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON, GLOO_SOCKET_IFNAME="nosuch0") as runner:
        refused = runner.refused_load(checkpoint.folder, engine_args=TENSOR)
        assert (refused[0], refused.cause) == ("ABORTED", Cause.EXCHANGE)
        assert workers(runner) == []
