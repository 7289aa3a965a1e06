"""What the PyTorch backend alone promises, shown on its real runner on the CPU against plain transformers."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from contract.runner_process import (
    PYTORCH_FOLDER,
    PYTORCH_PYTHON,
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
from tokenizers import Tokenizer

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract.runner_process import Pass, Runner

pytestmark = pytest.mark.skipif(not PYTORCH_PYTHON.exists(), reason=f"no PyTorch environment at {PYTORCH_PYTHON}")

NEW_TOKENS = 40
PROMPTS = [[7, 8, 9], [3 + i % 90 for i in range(17)], [200 - i for i in range(60)], [5, 4, 3, 6, 7, 8, 9, 10, 11, 12]]
GIB = 1 << 30


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with real files: weights, tokenizer, and a generation_config full of preferences."""
    folder = write_config(tmp_path_factory.mktemp("checkpoint"), dtype="float32")
    pytorch_reference("make", str(folder))
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def continuations(checkpoint: Path) -> list[list[int]]:
    """Return plain transformers' greedy ids for PROMPTS."""
    answer: list[list[int]] = json.loads(pytorch_reference("greedy", str(checkpoint), json.dumps(PROMPTS)))
    return answer


@pytest.fixture(scope="module")
def eos_ids(continuations: list[list[int]]) -> list[int]:
    """Return two ids that end some continuation early."""
    return [continuations[0][11], continuations[2][4]]


@pytest.fixture(scope="module")
def loaded(checkpoint: Path, eos_ids: list[int]) -> Iterator[tuple[Runner, pb.Loaded]]:
    """Return a runner with the checkpoint loaded, whose generation_config would change every answer."""
    preferences = {"eos_token_id": eos_ids, "do_sample": True, "repetition_penalty": 1.9, "top_k": 1, "num_beams": 3}
    (checkpoint / "generation_config.json").write_text(json.dumps(preferences), encoding="utf-8")
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON) as runner:
        yield runner, runner.load(checkpoint, engine_args={"cpu_threads": 1})[0]


@pytest.fixture
def runner(loaded: tuple[Runner, pb.Loaded]) -> Runner:
    """Return the runner with the checkpoint loaded."""
    return loaded[0]


@pytest.fixture(scope="module")
def second_runner() -> Iterator[Runner]:
    """Return another runner, for tests that load."""
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON) as runner:
        yield runner


@pytest.fixture
def bare(second_runner: Runner, tmp_path: Path) -> Iterator[tuple[Runner, Path]]:
    """Return a runner with nothing loaded, and a folder with config.json only."""
    yield second_runner, write_config(tmp_path / "bare")
    second_runner.stub.Unload(pb.UnloadRequest())


def token_prompts() -> list[pb.Prompt]:
    """Return PROMPTS for the wire."""
    return [pb.Prompt(token_ids=pb.TokenIds(ids=ids)) for ids in PROMPTS]


def run(runner: Runner, prompts: list[pb.Prompt] | None = None, **fields: Any) -> Pass:
    """Run all prompts in one batch and return ids with the record."""
    asked = {"in_flight": 4, "max_output_tokens": NEW_TOKENS, "return_token_ids": True, **fields}
    return runner.generate(workload(**asked), token_prompts() if prompts is None else prompts)


@pytest.mark.parametrize("in_flight", [1, 3, 4])
def test_left_padded_batch_generates_what_each_prompt_does_alone(
    runner: Runner, continuations: list[list[int]], in_flight: int
) -> None:
    """Attention mask and positions hide the padding completely; the checkpoint's preferences have no effect."""
    assert output_ids(run(runner, in_flight=in_flight)) == continuations


def test_end_of_sequence_is_counted_and_padding_after_it_is_not(
    runner: Runner, continuations: list[list[int]], eos_ids: list[int]
) -> None:
    """Each sequence ends with its first end-of-sequence id, whatever its neighbours do."""
    expected = [cut_after_first(ids, eos_ids) for ids in continuations]
    result = run(runner, ignore_eos=False)
    assert output_ids(result) == expected
    assert [record.output_tokens for record in result.requests] == [len(ids) for ids in expected]
    reasons = ["stop" if ids[-1] in eos_ids else "length" for ids in expected]
    assert [record.finish_reason for record in result.requests] == reasons
    assert result.summary.output_tokens == sum(map(len, expected)) < 4 * NEW_TOKENS
    assert result.output_tokens[-1] == result.summary.output_tokens


def cut_after_first(ids: list[int], ends: list[int]) -> list[int]:
    """Return `ids` up to and with the first of `ends`."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)


def test_ignored_preferences_of_the_checkpoint_are_told(loaded: tuple[Runner, pb.Loaded], eos_ids: list[int]) -> None:
    """What could have changed the output stands in the warnings; what ends a sequence is in effect."""
    warnings = " ".join(loaded[1].environment.warnings)
    assert "'repetition_penalty': 1.9" in warnings
    assert "'num_beams': 3" in warnings
    assert json.loads(loaded[1].effective_engine_args_json)["eos_token_ids"] == eos_ids


def test_sampling_repeats_with_its_seed_and_differs_from_greedy(runner: Runner, continuations: list[list[int]]) -> None:
    """The seed is the pass's, not the process's."""
    sampling = pb.Sampling(temperature=1.5, top_p=0.95, top_k=50)
    first, again, other = (output_ids(run(runner, sampling=sampling, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first != continuations


def test_top_k_of_one_is_greedy_and_no_top_k_is_not(runner: Runner, continuations: list[list[int]]) -> None:
    """top_k reaches the sampler, and leaving it out switches it off."""
    assert output_ids(run(runner, sampling=pb.Sampling(temperature=1.5, top_k=1))) == continuations
    assert output_ids(run(runner, sampling=pb.Sampling(temperature=1.5))) != continuations


def test_text_is_tokenised_with_one_bos_and_decoded(runner: Runner, checkpoint: Path) -> None:
    """Plain text gets the tokenizer's own special tokens; the text that comes back is the ids' text."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    text = "a watt is a joule per second"
    (record,) = run(runner, [pb.Prompt(text=text)], return_text=True).requests
    assert record.prompt_tokens == len(tokenizer.encode(text).ids)
    assert record.text == tokenizer.decode(list(record.output_ids.ids), skip_special_tokens=True)


def test_chat_template_adds_no_second_bos(runner: Runner, checkpoint: Path) -> None:
    """The template writes the BOS, so the tokenizer must not."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    (record,) = run(runner, [pb.Prompt(text="hello")], chat_template=True).requests
    templated = tokenizer.encode("<s>[user] hello[assistant]", add_special_tokens=False).ids
    assert templated[0] == 1
    assert record.prompt_tokens == len(templated)


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        (ids_prompt(500), "500 + 40 positions, and the model has 512"),
        (pb.Prompt(token_ids=pb.TokenIds(ids=[1, 512])), "holds id 512, and the model has 512"),
        (pb.Prompt(token_ids=pb.TokenIds(ids=[])), "prompt 1 has no tokens"),
    ],
)
def test_prompt_that_this_model_cannot_run_is_refused(runner: Runner, prompt: pb.Prompt, named: str) -> None:
    """A device-side assertion would take the whole runner with it."""
    asked = workload(max_output_tokens=NEW_TOKENS)
    code, detail = refusal(runner.stub.Generate(iter(generate_requests(asked, [ids_prompt(3), prompt]))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert named in detail


def test_arrivals_that_static_batches_cannot_serve_are_refused_by_name(runner: Runner) -> None:
    """No arrival is quietly replaced by another."""
    asked = workload(arrival=pb.ARRIVAL_CLOSED)
    code, detail = refusal(runner.stub.Generate(iter(generate_requests(asked, [ids_prompt(3)]))))
    assert (code, detail) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "pytorch cannot serve arrival 'closed'; valid: batch, single",
    )


def test_running_out_of_host_memory_is_named_and_the_runner_lives(runner: Runner) -> None:
    """A real allocation fails under a real limit; without it the same pass runs."""
    size_kib = re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{runner.process.pid}/status").read_text())
    assert size_kib is not None
    pid, unlimited = runner.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(pid, resource.RLIMIT_AS, (int(size_kib[1]) * 1024 + GIB // 8, resource.RLIM_INFINITY))
    big = workload(in_flight=600, max_output_tokens=2)
    prompts = [ids_prompt(400)] * 600
    code, detail = refusal(runner.stub.Generate(iter(generate_requests(big, prompts))))
    resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "generating with 600 in flight" in detail
    assert run(runner).summary.requests == 4


def test_describe_loads_no_engine_and_load_does(runner: Runner) -> None:
    """Readiness is told by a process that has not mapped libtorch."""
    with running("pytorch", PYTORCH_FOLDER, PYTORCH_PYTHON) as fresh:
        assert fresh.stub.Describe(pb.DescribeRequest()).package_versions["torch"]
        assert "libtorch" not in Path(f"/proc/{fresh.process.pid}/maps").read_text()
    assert "libtorch" in Path(f"/proc/{runner.process.pid}/maps").read_text()


def test_engine_arguments_are_in_effect_when_read_back(bare: tuple[Runner, Path]) -> None:
    """What was asked for is what the model says it runs with."""
    runner, folder = bare
    asked: dict[str, object] = {
        "attn_implementation": "eager",
        "cpu_threads": 1,
        "float32_matmul_precision": "medium",
        "device_map": "auto",
    }
    loaded, _ = runner.load(folder, engine_args=asked, random_weights=SMALL_UNIFORM, dtype="bfloat16")
    effective = json.loads(loaded.effective_engine_args_json)
    assert effective.pop("device_map") == {"": "cpu"}
    assert effective.items() >= {**asked, "dtype": "bfloat16"}.items() - {("device_map", "auto")}
    assert loaded.environment.weight_bytes == 2 * loaded.environment.parameter_count


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "cannot load"),
        (
            {"engine_args": {"attn_implementation": "flash_attention_9"}, "random_weights": SMALL_UNIFORM},
            grpc.StatusCode.INVALID_ARGUMENT,
            "flash_attention_9",
        ),
        (
            {"gpu_uuids": ["GPU-1234"], "random_weights": SMALL_UNIFORM},
            grpc.StatusCode.FAILED_PRECONDITION,
            "asked for GPUs [GPU-1234], but torch sees []",
        ),
    ],
)
def test_load_that_cannot_be_had_is_refused(
    bare: tuple[Runner, Path], fields: dict[str, Any], code: grpc.StatusCode, named: str
) -> None:
    """No weights, no such attention, no such GPU: each is an error that names it."""
    runner, folder = bare
    assert (answer := refusal(runner.stub.Load(load_request(folder, **fields))))[0] is code
    assert named in answer[1]


def test_checkpoint_that_lacks_a_parameter_is_refused(bare: tuple[Runner, Path], checkpoint: Path) -> None:
    """Transformers would draw what is missing and go on."""
    runner, _ = bare
    folder = write_config(checkpoint.parent / "deeper", num_hidden_layers=3)
    (folder / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    code, detail = refusal(runner.stub.Load(load_request(folder)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "model.layers.2." in detail


def test_text_without_a_tokenizer_is_refused(bare: tuple[Runner, Path]) -> None:
    """The way out stands in the message."""
    runner, folder = bare
    runner.load(folder, random_weights=SMALL_UNIFORM)
    code, detail = refusal(runner.stub.Generate(iter(generate_requests(workload(), [pb.Prompt(text="hello")]))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "token ids" in detail


def test_random_weights_have_the_stated_distribution_and_leave_the_rest_alone(tmp_path: Path) -> None:
    """Uniform on [-0.02, 0.04): mean 0.01, deviation 0.06/√12; ties and rotary tables as transformers makes them."""
    facts = json.loads(pytorch_reference("weights", str(write_config(tmp_path))))
    assert -0.0201 < facts["low"] < -0.0199
    assert 0.0398 < facts["high"] < 0.0401
    assert facts["mean"] == pytest.approx(0.01, abs=2e-4)
    assert facts["std"] == pytest.approx(0.06 / 12**0.5, rel=0.01)
    assert facts["distinct"] > 1_000
    assert facts["dtypes"] == ["torch.bfloat16"]
    assert facts["same_seed_is_equal"]
    assert not facts["other_seed_shares_a_tensor"]
    assert facts["queries_differ_between_layers"]
    assert facts["tied"]
    assert facts["names_match"]
    assert facts["buffers"] > 0
    assert facts["buffers_match"]
