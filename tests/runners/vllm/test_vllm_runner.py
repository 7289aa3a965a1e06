"""What the vLLM backend alone promises, shown on its real runner on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from contract.runner_process import ids_prompt, output_ids, workload
from contract.shared_runners import BY_NAME
from contract.subjects import SMALL_UNIFORM, TINY_LLAMA
from runners.checkpoints import run
from seams.inputs import ModelMemory

from wattdock.config import EngineMemory

if TYPE_CHECKING:
    from contract.runner_process import Pass, Runner
    from contract.shared_runners import SharedRunners
    from runners.checkpoints import Checkpoint

    from wattdock_proto.v1 import runner_pb2 as pb

# vLLM's smallest on a CPU; a prompt must fill a block before the block can be cached.
BLOCK_TOKENS = 32


@pytest.fixture
def loaded(runners: SharedRunners, model_path: Path) -> tuple[Runner, pb.Loaded]:
    """Return a vLLM runner as the contract test and the last tests here load it, and what it says of it."""
    return runners.loaded("vllm", model_path, **BY_NAME["vllm"].load_fields)


@pytest.fixture
def runner(loaded: tuple[Runner, pb.Loaded]) -> Runner:
    return loaded[0]


def test_arguments_that_the_engine_keeps_by_other_names_are_read_back(bare: tuple[Runner, Path]) -> None:
    """In its parts for adapters and scheduling, as vLLM left them; it has none for pictures."""
    runner, folder = bare
    adapters = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]}
    requested: dict[str, object] = {**adapters, "scheduling_policy": "priority", "kv_cache_memory_bytes": 1 << 26}
    loaded, _ = runner.load(folder, engine_args=requested, random_weights=SMALL_UNIFORM)
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective.items() >= {**requested, "lora_dtype": "float32", "max_cpu_loras": 1}.items()
    assert "mm_processor_cache_gb" not in effective


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"engine_args": {"max_model_len": 100_000}}, "INVALID_ARGUMENT", "max_model_len (100000)"),
        ({"engine_args": {"hf_overrides": {"num_hidden_layers": 1}}}, "INVALID_ARGUMENT", "another model would run"),
        ({"engine_args": {"kv_cache_dtype": "int3"}}, "INVALID_ARGUMENT", ", not 'int3'"),
        ({"engine_args": {"kv_cache_memory_bytes": 1000}}, "RESOURCE_EXHAUSTED", "cache blocks"),
        ({"engine_args": {"kv_cache_memory_bytes": 200_000}}, "RESOURCE_EXHAUSTED", "KV cache"),
        ({"engine_args": {"kv_cache_memory_bytes": 1 << 45}}, "RESOURCE_EXHAUSTED", "(32768.0 GiB)"),
        ({"engine_args": {"load_format": "safetensors"}}, "INVALID_ARGUMENT", "random weights are not read"),
        ({"engine_args": {"load_format": "pt"}, "random_weights": None}, "INVALID_ARGUMENT", "that can run code"),
        ({"engine_args": {"load_format": "dummy"}, "random_weights": None}, "INVALID_ARGUMENT", "would pass for"),
        (
            {"engine_args": {"speculative_config": {"model": "/nowhere"}}},
            "INVALID_ARGUMENT",
            "cannot draft with /nowhere",
        ),
        ({"engine_args": {"speculative_config": {"draft_load_config": {}}}}, "INVALID_ARGUMENT", "that run code"),
    ],
)
def test_load_that_cannot_be_had_is_refused(
    bare: tuple[Runner, Path], fields: dict[str, Any], code: str, named: str
) -> None:
    """Values that vLLM refuses, a KV cache without room, other ways to read weights: each is named."""
    runner, folder = bare
    requested = {"random_weights": SMALL_UNIFORM, **fields}
    status, detail = runner.refused_load(folder, **requested)
    assert (status, named in detail) == (code, True), detail


def test_a_draft_that_is_the_model_itself_is_always_right(bare: tuple[Runner, Path], checkpoint: Checkpoint) -> None:
    """The answers stay those of the model alone; each step decodes more tokens than it has sequences."""
    runner, _ = bare
    drafting = {"method": "draft_model", "model": str(checkpoint.folder), "num_speculative_tokens": 3}
    options: dict[str, object] = {"speculative_config": drafting, "kv_cache_memory_bytes": 1 << 26}
    loaded, _ = runner.load(checkpoint.folder, engine_args=options)
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective["speculative_config"] == {"method": "draft_model", "num_speculative_tokens": 3}
    result = run(runner)
    assert output_ids(result) == checkpoint.continuations
    # A prompt's first token comes alone, then four a step; of the tenth step the fourth lies behind the answer's end.
    assert result.summary.accepted_tokens == result.summary.drafted_tokens == 4 * 10 * 3
    assert max(result.steps.decoded_tokens) == 4 * 4
    assert [len(record.token_gaps_ns) for record in result.requests] == [39] * 4


def test_a_prompt_in_chunks_is_computed_over_several_steps(bare: tuple[Runner, Path]) -> None:
    """While it is, the short request decodes beside it."""
    runner, folder = bare
    chunks: dict[str, object] = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "enable_chunked_prefill": True}
    runner.load(folder, engine_args=chunks, random_weights=SMALL_UNIFORM)
    steps = run(runner, [ids_prompt(9), ids_prompt(150)]).steps
    # A decoded token takes one of the 64 places.
    assert list(steps.prompt_tokens)[:4] == [64, 63, 32, 0]
    assert list(steps.decoded_tokens)[:4] == [0, 1, 1, 2]
    assert list(steps.context_tokens)[:4] == [9 + 55, 10 + 118, 11 + 150, 12 + 151]
    assert list(steps.sequences)[:4] == [2] * 4


def test_a_repeated_pass_computes_every_prompt_token_again(runner: Runner) -> None:
    """Prefix caching is off by default, so that no measured prompt comes from a cache."""
    prompts = [ids_prompt(4 * BLOCK_TOKENS), ids_prompt(5 * BLOCK_TOKENS)]
    for _ in range(2):
        result = run(runner, prompts)
        # Unknown is not none.
        assert all(record.HasField("cached_prompt_tokens") for record in result.requests)
        assert [record.prompt_tokens - record.cached_prompt_tokens for record in result.requests] == [128, 160]
        assert result.summary.cached_prompt_tokens == 0


def test_keys_and_values_take_what_an_estimate_says(loaded: tuple[Runner, pb.Loaded]) -> None:
    """The engine's own number of blocks fills the cache that it was given, to within one block."""
    effective = json.loads(loaded[1].effective_engine_args_json)
    model = ModelMemory.of(TINY_LLAMA, EngineMemory(), dtype="float32")
    tokens = effective["num_gpu_blocks"] * effective["block_size"]
    estimated = model.kv_bytes(tokens)
    block = estimated / effective["num_gpu_blocks"]
    assert 0 <= effective["kv_cache_memory_bytes"] - estimated < block


def test_effective_arguments_are_the_engines_own(loaded: tuple[Runner, pb.Loaded]) -> None:
    """What was requested, what wattdock decided and what vLLM worked out."""
    effective = json.loads(loaded[1].effective_engine_args_json)
    decided = {"enable_prefix_caching": False, "enforce_eager": True, "kv_cache_memory_bytes": 2 << 30}
    assert effective.items() >= {"max_num_seqs": 64, "max_model_len": 512, "dtype": "float32", **decided}.items()
    assert effective["num_gpu_blocks"] > 0
    # Without a request; vLLM has no other backend for a CPU.
    assert effective["attention_backend"] == "CPU_ATTN"
    assert "hf_token" not in effective


def test_more_in_flight_than_the_engine_serves_is_refused(runner: Runner) -> None:
    """vLLM would queue a request without a word."""
    code, detail = runner.refused_pass(workload(in_flight=65), [ids_prompt(3)])
    assert (code, "max_num_seqs" in detail) == ("INVALID_ARGUMENT", True), detail


def test_the_engine_core_runs_in_the_runner_whatever_the_environment_says(runner: Runner) -> None:
    """vLLM waits for ever on a core that was killed in a process of its own; here it dies with the runner."""
    variable = b"VLLM_ENABLE_V1_MULTIPROCESSING=1"
    assert variable in Path(f"/proc/{runner.process.pid}/environ").read_bytes().split(b"\0")
    assert runner.children("VLLM::") == []


def test_random_weights_are_those_of_the_pytorch_runner(loaded: tuple[Runner, pb.Loaded], drawn_pass: Pass) -> None:
    """Drawn by a checkpoint's names: fused matrices and a vocabulary that vLLM pads hold the same values."""
    assert json.loads(loaded[1].effective_engine_args_json)["random_weights_drawn"] == "whole"
    assert output_ids(run(loaded[0])) == output_ids(drawn_pass)
    assert all(len(set(ids)) > 3 for ids in output_ids(drawn_pass))
