"""The TensorRT-LLM runner over the stand-in: arrivals, ends of sequences, and what fails."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import LONGEST_S, ids_prompt, load_request, refusal, token_bytes, workload
from contract.subjects import SMALL_UNIFORM, TENSORRT, write_config, write_tokenizer

from wattdock.errors import Cause
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path

    from contract.runner_process import Pass, Runner

PYTHON = TENSORRT.python
GPUS, BACKEND = TENSORRT.gpus, TENSORRT
TWO_ENDS = {"eos_token_id": [2, 5]}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=f"no environment with torch at {PYTHON}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model folder with a tokenizer, two ends of sequences and no weights."""
    made = write_config(tmp_path_factory.mktemp("model"), **TWO_ENDS)
    write_tokenizer(made)
    (made / "generation_config.json").write_text(json.dumps({**TWO_ENDS, "repetition_penalty": 1.9}))
    return made


def run(runner: Runner, prompts: list[pb.Prompt], **fields: Any) -> Pass:
    """Run one pass that returns ids."""
    return runner.generate(workload(**{"return_token_ids": True, **fields}), prompts)


def workers(runner: Runner) -> list[int]:
    """Return the engine's processes."""
    return runner.children("mpi4py.futures.server")


def test_tokens_of_one_step_share_an_instant(bare: Runner, load: Any) -> None:
    """One response a step and request, and one point of the series a step."""
    load()
    result = run(bare, [ids_prompt(5)] * 16, in_flight=16, max_output_tokens=30)
    assert result.output_tokens[-1] == 16 * 30
    # 30 steps; a busy machine may see a step in two turns, or two steps in one.
    assert len(result.at_ns) < 90


def test_the_id_that_ends_a_sequence_counts(bare: Runner, load: Any) -> None:
    """The engine's own end id and a further one alike; ignored, an end id ends nothing."""
    load()
    prompts = [pb.Prompt(token_ids=token_bytes([first, 9, 9])) for first in (7, 8, 9)]
    stopped = run(bare, prompts, in_flight=3, ignore_eos=False, max_output_tokens=6).requests
    full = run(bare, prompts, in_flight=3, ignore_eos=True, max_output_tokens=6).requests
    assert [(r.output_tokens, r.finish_reason) for r in stopped] == [(3, "stop"), (3, "stop"), (6, "length")]
    assert [list(record.output_ids.ids)[-1] for record in stopped[:2]] == [2, 5]
    assert [(r.output_tokens, r.finish_reason) for r in full] == [(6, "length")] * 3


def test_what_is_in_effect_is_read_back_with_block_reuse_off(bare: Runner, load: Any) -> None:
    """TensorRT-LLM's own default would serve prompts from its cache."""
    loaded = load(kv_cache_config={"free_gpu_memory_fraction": 0.5}, max_batch_size=64)
    effective = json.loads(loaded.effective_engine_args_json)
    cache = effective["kv_cache_config"]
    assert (cache["enable_block_reuse"], cache["free_gpu_memory_fraction"]) == (False, 0.5)
    named = {"max_batch_size": 64, "max_num_tokens": 8192, "tp_size": 1, "eos_token_ids": [2, 5]}
    assert effective.items() >= named.items()
    assert loaded.environment.used_gpu_uuids == [GPUS[0]]
    assert "'repetition_penalty': 1.9" in " ".join(loaded.environment.warnings)


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"engine_args": {"load_format": "dummy"}}, "INVALID_ARGUMENT", "has no argument 'load_format'"),
        ({"engine_args": {"model_kwargs": {"num_hidden_layers": 1}}}, "INVALID_ARGUMENT", "another model would run"),
        ({"engine_args": {"speculative_config": {"decoding_type": "Eagle"}}}, "INVALID_ARGUMENT", "a draft model's"),
        ({"engine_args": {"allreduce_strategy": "NCLL"}}, "INVALID_ARGUMENT", "'NCCL'"),
        ({"engine_args": {"kv_cache_config": {"max_token": 1}}}, "INVALID_ARGUMENT", "kv_cache_config.max_token"),
        ({"engine_args": {"kv_cache_config": {"max_tokens": "x"}}}, "INVALID_ARGUMENT", "kv_cache_config.max_tokens"),
        ({"engine_args": {"backend": "tensorrt"}}, "INVALID_ARGUMENT", "has no argument 'backend'"),
        ({"gpu_uuids": ()}, "FAILED_PRECONDITION", "torch sees [GPU-5a0d1000"),
    ],
)
def test_load_that_cannot_be_had_is_refused(
    bare: Runner, folder: Path, fields: dict[str, Any], code: str, named: str
) -> None:
    """Another engine's arguments, values of the wrong kind, no GPU: each is named."""
    order = {"random_weights": SMALL_UNIFORM, "gpu_uuids": GPUS, **fields}
    status, detail = bare.refused_load(folder, **order)
    assert (status, named in detail) == (code, True), detail


@pytest.mark.parametrize(
    ("changes", "prompt", "named"),
    [
        ({"in_flight": 9}, ids_prompt(3), "this engine serves 8 at a time; raise max_batch_size"),
        ({}, ids_prompt(80), "80 tokens, and this engine computes 64 in one step"),
    ],
)
def test_a_pass_that_the_engine_would_serve_otherwise_is_refused(
    bare: Runner, load: Any, changes: dict[str, Any], prompt: pb.Prompt, named: str
) -> None:
    """Neither in the middle, nor queued inside the engine without a word."""
    load(max_batch_size=8, max_num_tokens=64)
    fields = {"in_flight": 1, "max_output_tokens": 40, **changes}
    code, detail = bare.refused_pass(workload(**fields), [prompt])
    assert (code, named in detail) == ("INVALID_ARGUMENT", True), detail


def test_no_gpu_is_said_before_anything_is_tried(bare: Runner, folder: Path, fault: Path) -> None:
    """There is no TensorRT-LLM for CPUs."""
    fault.write_text("no GPU")
    assert bare.refused_load(folder, random_weights=SMALL_UNIFORM)[0] == "FAILED_PRECONDITION"


def test_a_worker_that_did_not_start_is_named_as_the_cause(bare: Runner, folder: Path, fault: Path) -> None:
    """The runner's log may say why, which is looked through for such a cause only."""
    fault.write_text("death at load")
    call = bare.stub.Load(load_request(folder, random_weights=SMALL_UNIFORM, gpu_uuids=GPUS), timeout=LONGEST_S)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("INTERNAL", Cause.WORKER), refused


def test_a_killed_worker_fails_the_pass_by_name_and_its_model_is_unloaded(bare: Runner, load: Any) -> None:
    """TensorRT-LLM itself would wait for ever, in the pass and in its shutdown."""
    load()
    call = bare.start_long()
    (worker,) = workers(bare)
    os.kill(worker, signal.SIGKILL)
    refused = refusal(call)
    assert (refused[0], refused.cause) == ("INTERNAL", Cause.WORKER), refused
    bare.unload()
    assert workers(bare) == []


def test_running_out_of_memory_in_a_pass_is_resource_exhausted(bare: Runner, load: Any, fault: Path) -> None:
    """It comes as text from another process, and is told from other failures all the same."""
    fault.write_text("oom in a pass")
    load()
    refused = bare.refused_pass(workload(), [ids_prompt(10)])
    # The worker read its fault when it was started, and keeps it.
    bare.unload()
    assert (refused[0], refused.cause) == ("RESOURCE_EXHAUSTED", Cause.MEMORY)
