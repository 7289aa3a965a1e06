"""What real engines generate from one checkpoint on a CPU: the ids of plain transformers, whichever the engine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from contract.runner_process import output_ids, token_bytes
from contract.subjects import ONE_THREAD
from runners.checkpoints import NEW_TOKENS, VLLM_SERVED_ARGS, Checkpoint, run
from tokenizers import Tokenizer

from wattdock_proto.v1 import runner_pb2 as pb

if TYPE_CHECKING:
    from contract.runner_process import Pass, Runner
    from contract.shared_runners import SharedRunners

ENGINES = {
    "pytorch": {"cpu_threads": 1},
    "llamacpp": {
        **ONE_THREAD,
        "n_parallel": 4,
        "n_ctx": 2048,
        "cache_type_k": "f32",
        "cache_type_v": "f32",
        "flash_attn": "off",
    },
    "vllm": {"max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 26},
    "vllm-served": VLLM_SERVED_ARGS,
}


@pytest.fixture(scope="module", params=ENGINES)
def loaded(request: pytest.FixtureRequest, runners: SharedRunners, checkpoint: Checkpoint) -> tuple[Runner, pb.Loaded]:
    """Return a runner with the checkpoint loaded, and what it says of it."""
    return runners.loaded(request.param, checkpoint.folder, engine_args=ENGINES[request.param])


@pytest.fixture
def runner(loaded: tuple[Runner, pb.Loaded]) -> Runner:
    return loaded[0]


@pytest.mark.parametrize("in_flight", [1, 3, 4])
def test_a_batch_generates_what_each_prompt_does_alone(runner: Runner, checkpoint: Checkpoint, in_flight: int) -> None:
    """Padding and neighbours are hidden completely; the checkpoint's preferences have no effect."""
    assert comparable(runner, checkpoint, run(runner, in_flight=in_flight)) == comparable(runner, checkpoint)


def comparable(runner: Runner, checkpoint: Checkpoint, result: Pass | None = None) -> list[list[int]]:
    """Return ids of a pass, or of plain transformers; of llama.cpp's, which never draws an end that it is to ignore,
    those before the first end.
    """
    answers = output_ids(result) if result else checkpoint.continuations
    if "llamacpp" not in str(runner.process.args):
        return answers
    whole = [cut_after_first(ids, checkpoint.eos_ids) for ids in checkpoint.continuations]
    return [ids[: len(known) - (known[-1] in checkpoint.eos_ids)] for ids, known in zip(answers, whole, strict=True)]


def test_end_of_sequence_is_counted_and_nothing_after_it(runner: Runner, checkpoint: Checkpoint) -> None:
    """Each sequence ends with its first end-of-sequence id, whatever its neighbours do."""
    expected = [cut_after_first(ids, checkpoint.eos_ids) for ids in checkpoint.continuations]
    result = run(runner, ignore_eos=False)
    assert output_ids(result) == expected
    assert [record.output_tokens for record in result.requests] == [len(ids) for ids in expected]
    reasons = ["stop" if ids[-1] in checkpoint.eos_ids else "length" for ids in expected]
    assert [record.finish_reason for record in result.requests] == reasons
    assert result.summary.output_tokens == sum(map(len, expected)) < 4 * NEW_TOKENS
    assert result.output_tokens[-1] == result.summary.output_tokens


def cut_after_first(ids: list[int], ends: list[int]) -> list[int]:
    """Return `ids` up to and with the first of `ends`."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in ends), ids)


def test_the_checkpoints_preferences_are_a_warning(loaded: tuple[Runner, pb.Loaded], checkpoint: Checkpoint) -> None:
    """What could have changed the output stands in the warnings; what ends a sequence is in effect."""
    assert "'repetition_penalty': 1.9" in " ".join(loaded[1].environment.warnings)
    assert json.loads(loaded[1].effective_engine_args_json)["eos_token_ids"] == checkpoint.eos_ids


def test_sampling_repeats_with_its_seed_and_differs_from_greedy(runner: Runner, checkpoint: Checkpoint) -> None:
    """The seed is the pass's, not the process's."""
    sampling = pb.Sampling(temperature=1.5, top_p=0.95, top_k=50)
    first, again, other = (output_ids(run(runner, sampling=sampling, seed=seed)) for seed in (1, 1, 200))
    assert first == again
    assert first != other
    assert first != checkpoint.continuations


def test_top_k_of_one_is_greedy_and_no_top_k_is_not(runner: Runner, checkpoint: Checkpoint) -> None:
    """top_k reaches the sampler, and leaving it out switches it off."""
    greedy = run(runner, sampling=pb.Sampling(temperature=1.5, top_k=1))
    assert comparable(runner, checkpoint, greedy) == comparable(runner, checkpoint)
    assert output_ids(run(runner, sampling=pb.Sampling(temperature=1.5))) != checkpoint.continuations


def test_text_is_encoded_with_one_bos_and_decoded(runner: Runner, checkpoint: Checkpoint) -> None:
    """Plain text gets the tokenizer's special tokens, a chat template writes its own; text that returns is the ids'."""
    tokenizer = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    text = "a watt is a joule per second"
    (plain,) = run(runner, [pb.Prompt(text=text)], return_text=True).requests
    assert plain.prompt_tokens == len(tokenizer.encode(text).ids)
    assert plain.text == tokenizer.decode(list(plain.output_ids.ids), skip_special_tokens=True)
    result = run(runner, [pb.Prompt(text="hello")], chat_template=True)
    (chat,) = result.requests
    templated = tokenizer.encode("<s>[user] hello[assistant]", add_special_tokens=False).ids
    assert templated[0] == 1
    assert chat.prompt_tokens == len(templated)
    packed = token_bytes([len(templated), *templated])
    assert result.summary.rendered_sha256 == hashlib.sha256(packed).hexdigest()
