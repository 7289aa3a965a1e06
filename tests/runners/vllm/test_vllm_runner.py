"""What the vLLM backend alone promises, shown on its real runner on the CPU against the PyTorch runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from contract.runner_process import (
    PYTORCH_FOLDER,
    PYTORCH_PYTHON,
    VLLM_FOLDER,
    VLLM_PYTHON,
    generate_requests,
    ids_prompt,
    load_request,
    output_ids,
    pytorch_reference,
    refusal,
    running,
    workload,
)
from contract.subjects import SMALL_UNIFORM, write_config, write_tokenizer

from wattdock.config import EngineMemory
from wattdock.inputs.memory import ModelMemory
from wattdock.launch.keeper import descendants
from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Pass, Runner

pytestmark = pytest.mark.skipif(
    not (VLLM_PYTHON.exists() and PYTORCH_PYTHON.exists()),
    reason=f"no vLLM environment at {VLLM_PYTHON}, or no PyTorch environment beside it",
)

NEW_TOKENS = 40
PROMPTS = [[7, 8, 9], [3 + i % 90 for i in range(17)], [200 - i for i in range(60)], [5, 4, 3, 6, 7, 8, 9, 10, 11, 12]]
# vLLM's smallest on a CPU; a prompt must fill a block before the block can be cached.
BLOCK_TOKENS = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with real files: float32 weights, tokenizer, and preferences that no pass may follow."""
    folder = write_config(tmp_path_factory.mktemp("checkpoint"), dtype="float32")
    pytorch_reference("make", str(folder))
    write_tokenizer(folder)
    preferences = {"eos_token_id": 2, "do_sample": True, "repetition_penalty": 1.9, "top_k": 1}
    (folder / "generation_config.json").write_text(json.dumps(preferences), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def pytorch() -> Iterator[Runner]:
    """Return a PyTorch runner; who loads a model there unloads it."""
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON) as runner:
        yield runner


@pytest.fixture(scope="module")
def continuations(checkpoint: Path, pytorch: Runner) -> list[list[int]]:
    """Return the PyTorch runner's greedy ids for PROMPTS, and leave two of them as ends of sequence."""
    pytorch.load(checkpoint)
    answers = output_ids(run(pytorch))
    pytorch.stub.Unload(pb.UnloadRequest())
    settings = json.loads((checkpoint / "generation_config.json").read_text())
    settings["eos_token_id"] = [answers[0][11], answers[2][4]]
    (checkpoint / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return answers


@pytest.fixture(scope="module")
def loaded(checkpoint: Path, continuations: list[list[int]]) -> Iterator[tuple[Runner, pb.Loaded]]:
    """Return a vLLM runner with the checkpoint loaded and room for four requests at a time."""
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as runner:
        yield runner, runner.load(checkpoint, engine_args={"max_num_seqs": 4})[0]


@pytest.fixture
def runner(loaded: tuple[Runner, pb.Loaded]) -> Runner:
    """Return the runner with the checkpoint loaded."""
    return loaded[0]


def run(runner: Runner, prompts: list[pb.Prompt] | None = None, **fields: Any) -> Pass:
    """Run PROMPTS, or others, in one batch and return ids with the record."""
    asked = {"in_flight": 4, "max_output_tokens": NEW_TOKENS, "return_token_ids": True, **fields}
    default = [pb.Prompt(token_ids=pb.TokenIds(ids=ids)) for ids in PROMPTS]
    return runner.generate(workload(**asked), default if prompts is None else prompts)


def cut_after_first(ids: list[int], ends: list[int]) -> list[int]:
    """Return `ids` up to and with the first of `ends`."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)


@pytest.mark.parametrize("in_flight", [1, 4])
def test_greedy_tokens_equal_the_pytorch_runners(
    runner: Runner, continuations: list[list[int]], in_flight: int
) -> None:
    """Two engines, one model in float32, the same ids; the checkpoint's preferences have no effect."""
    assert output_ids(run(runner, in_flight=in_flight)) == continuations


def test_end_of_sequence_is_counted_and_nothing_comes_after_it(
    runner: Runner, continuations: list[list[int]], checkpoint: Path
) -> None:
    """What ends a sequence is the checkpoint's word, as for every backend."""
    ends = json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"]
    expected = [cut_after_first(ids, ends) for ids in continuations]
    result = run(runner, ignore_eos=False)
    assert output_ids(result) == expected
    assert [record.output_tokens for record in result.requests] == [len(ids) for ids in expected]
    reasons = ["stop" if ids[-1] in ends else "length" for ids in expected]
    assert [record.finish_reason for record in result.requests] == reasons
    assert "stop" in reasons


def test_sampling_repeats_with_its_seed_and_differs_from_greedy(runner: Runner, continuations: list[list[int]]) -> None:
    """The seed is the pass's, and neighbours in the batch change nothing."""
    sampling = pb.Sampling(temperature=1.5, top_p=0.95, top_k=50)
    first, again, other = (output_ids(run(runner, sampling=sampling, seed=seed)) for seed in (1, 1, 200))
    assert first == again
    assert first != other
    assert first != continuations


def test_a_repeated_pass_computes_every_prompt_token_again(runner: Runner) -> None:
    """Prefix caching is off by default, so that no measured prompt comes from a cache."""
    prompts = [ids_prompt(4 * BLOCK_TOKENS), ids_prompt(5 * BLOCK_TOKENS)]
    for _ in range(2):
        result = run(runner, prompts)
        # Unknown is not none.
        assert all(record.HasField("cached_prompt_tokens") for record in result.requests)
        assert [record.prompt_tokens - record.cached_prompt_tokens for record in result.requests] == [128, 160]
        assert result.summary.cached_prompt_tokens == 0


def test_keys_and_values_take_what_an_estimate_says(loaded: tuple[Runner, pb.Loaded], checkpoint: Path) -> None:
    """The engine's own number of blocks fills the cache that it was given, to within one block."""
    effective = json.loads(loaded[1].effective_engine_args_json)
    model = ModelMemory.of(json.loads((checkpoint / "config.json").read_text()), EngineMemory(), dtype="float32")
    tokens = effective["num_gpu_blocks"] * effective["block_size"]
    estimated = model.kv_bytes(tokens)
    block = estimated / effective["num_gpu_blocks"]
    assert 0 <= effective["kv_cache_memory_bytes"] - estimated < block


def test_effective_arguments_are_the_engines_own(loaded: tuple[Runner, pb.Loaded]) -> None:
    """What was asked, what wattdock decided and what vLLM worked out."""
    effective = json.loads(loaded[1].effective_engine_args_json)
    decided = {"enable_prefix_caching": False, "enforce_eager": True, "kv_cache_memory_bytes": 2 << 30}
    assert effective.items() >= {"max_num_seqs": 4, "max_model_len": 512, "dtype": "float32", **decided}.items()
    assert effective["num_gpu_blocks"] > 0
    # Nobody asked for one, and there is only this for a CPU.
    assert effective["attention_backend"] == "CPU_ATTN"
    assert "hf_token" not in effective
    assert "'repetition_penalty': 1.9" in " ".join(loaded[1].environment.warnings)


def test_arguments_that_the_engine_keeps_by_other_names_are_read_back(bare: tuple[Runner, Path]) -> None:
    """In its parts for adapters and scheduling, as vLLM left them; it has none for pictures."""
    runner, folder = bare
    adapters = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["q_proj"]}
    asked: dict[str, object] = {**adapters, "scheduling_policy": "priority"}
    loaded, _ = runner.load(folder, engine_args=asked, random_weights=SMALL_UNIFORM)
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective.items() >= {**asked, "lora_dtype": "float32", "max_cpu_loras": 1}.items()
    assert "mm_processor_cache_gb" not in effective


@pytest.mark.parametrize(
    ("asked", "prompt", "named"),
    [
        ({}, ids_prompt(500), "500 + 40 positions, and the model has 512"),
        ({}, pb.Prompt(token_ids=pb.TokenIds(ids=[1, 512])), "holds id 512, and the model has 512"),
        ({"in_flight": 5}, ids_prompt(3), "this engine serves 4 at a time; raise max_num_seqs"),
    ],
)
def test_a_pass_that_the_engine_would_serve_otherwise_is_refused(
    runner: Runner, asked: dict[str, Any], prompt: pb.Prompt, named: str
) -> None:
    """Neither cut, nor queued inside the engine without a word."""
    fields = {"in_flight": 1, "max_output_tokens": NEW_TOKENS, **asked}
    code, detail = refusal(runner.stub.Generate(iter(generate_requests(workload(**fields), [prompt]))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert named in detail


def test_describe_loads_no_engine_and_names_the_versions_it_supports(runner: Runner) -> None:
    """Readiness, and every argument of the installed vLLM, from a process that has not mapped libtorch."""
    with running("vllm", VLLM_FOLDER, VLLM_PYTHON) as fresh:
        described = fresh.stub.Describe(pb.DescribeRequest())
        assert "libtorch" not in Path(f"/proc/{fresh.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{runner.process.pid}/maps").read_text()
    assert described.supported_versions == ">=0.26,<0.34"
    assert {"tensor_parallel_size", "pipeline_parallel_size", "load_format"} <= set(described.engine_arguments)
    assert len(described.engine_arguments) > 150


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"engine_args": {"tensor_paralel_size": 1}}, "INVALID_ARGUMENT", "did you mean 'tensor_parallel_size'"),
        ({"engine_args": {"max_model_len": 100_000}}, "INVALID_ARGUMENT", "max_model_len (100000)"),
        ({"engine_args": {"hf_overrides": {"num_hidden_layers": 1}}}, "INVALID_ARGUMENT", "another model would run"),
        ({"engine_args": {"kv_cache_dtype": "int3"}}, "INVALID_ARGUMENT", "cache_dtype"),
        ({"engine_args": {"kv_cache_memory_bytes": 1000}}, "RESOURCE_EXHAUSTED", "cache blocks"),
        ({"engine_args": {"kv_cache_memory_bytes": 200_000}}, "RESOURCE_EXHAUSTED", "KV cache"),
        ({"engine_args": {"kv_cache_memory_bytes": 1 << 45}}, "RESOURCE_EXHAUSTED", "(32768.0 GiB)"),
        ({"engine_args": {"load_format": "safetensors"}}, "INVALID_ARGUMENT", "random weights are not read"),
        ({"engine_args": {"load_format": "dummy"}, "random_weights": None}, "INVALID_ARGUMENT", "would pass for"),
        ({"random_weights": None}, "INVALID_ARGUMENT", "cannot load"),
        ({"gpu_uuids": ["GPU-1234"]}, "FAILED_PRECONDITION", "asked for GPUs [GPU-1234], but vLLM sees []"),
    ],
)
def test_load_that_cannot_be_had_is_refused(
    bare: tuple[Runner, Path], fields: dict[str, Any], code: str, named: str
) -> None:
    """Unknown names, values that vLLM refuses, a KV cache without room, no weights, no such GPU: each is named."""
    runner, folder = bare
    asked = {"random_weights": SMALL_UNIFORM, **fields}
    status, detail = refusal(runner.stub.Load(load_request(folder, **asked)))
    assert (status.name, named in detail) == (code, True), detail


def test_a_model_larger_than_memory_is_refused_with_what_it_wanted(second_runner: Runner, tmp_path: Path) -> None:
    """Its embedding alone is a billion rows of 512 bytes."""
    folder = write_config(tmp_path, vocab_size=1_000_000_000)
    status, detail = refusal(second_runner.stub.Load(load_request(folder, random_weights=SMALL_UNIFORM)))
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "tried to allocate 512000000000 bytes" in detail


def test_the_engine_core_runs_in_the_runner_whatever_the_environment_says(bare: tuple[Runner, Path]) -> None:
    """vLLM waits for ever on a core that was killed in a process of its own; here it dies with the runner."""
    runner, folder = bare
    runner.load(folder, random_weights=SMALL_UNIFORM)
    below = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(runner.process.pid)]
    assert [line for line in below if line.startswith(b"VLLM::")] == []


def test_random_weights_are_those_of_the_pytorch_runner(bare: tuple[Runner, Path], pytorch: Runner) -> None:
    """Drawn by a checkpoint's names: fused matrices and a vocabulary that vLLM pads hold the same values."""
    runner, folder = bare
    weights = pb.RandomWeights(low=-0.5, high=0.5, seed=3)
    loaded, _ = runner.load(folder, random_weights=weights, dtype="float32")
    assert json.loads(loaded.effective_engine_args_json)["random_weights_drawn"] == "whole"
    pytorch.load(folder, random_weights=weights, dtype="float32")
    assert output_ids(run(runner)) == output_ids(run(pytorch))
    pytorch.stub.Unload(pb.UnloadRequest())
