"""Conversations of several turns: what each prompt holds, and what of it a prefix cache is meant to serve."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from refused import raises
from seams.inputs import conversations

from wattdock.config import ExperimentConfig
from wattdock.inputs import PromptSet, load_prompts

CACHED = {"backend": "vllm", "model": "shape:tiny-llama", "vllm": {"enable_prefix_caching": True}}


def experiment(prompts: dict[str, Any], **settings: Any) -> ExperimentConfig:
    """Return an experiment of conversations, two requests in flight."""
    work = {"batch_size": 2, "max_output_tokens": 5, "prompts": prompts}
    return ExperimentConfig.model_validate({**CACHED, "workload": work, **settings})


def test_a_turn_s_prompt_is_the_one_before_an_answer_and_new_tokens() -> None:
    """Two conversations abreast, two turns each; then the next two, which begin with the prefix again."""
    said = [(array("I", [10 * i]), array("I", [10 * i + 1])) for i in range(6)]
    prompts, repeated = conversations(said, array("I", [7, 7]), turns=2, abreast=2)
    assert tuple(map(tuple, prompts)) == (
        (7, 7, 0),
        (7, 7, 10),
        (7, 7, 0, 1, 20),
        (7, 7, 10, 11, 30),
        (7, 7, 40),
        (7, 7, 50),
    )
    # Nothing is there before the pass's first request.
    assert repeated == (0, 2, 3, 3, 2, 2)


def test_conversations_of_a_pass_are_long_as_declared_and_no_other_pass_s() -> None:
    """Four conversations abreast for two requests in flight, so that a turn has ended before the next one comes."""
    config = experiment({"turns": 3, "shared_prefix_tokens": 20, "input_tokens": 8, "count": 24})
    first, again, other = (load_prompts(config, pass_index=index, vocab_size=1000) for index in (0, 0, 1))
    assert first == again
    assert [len(item) for item in first.items] == ([28] * 4 + [41] * 4 + [54] * 4) * 2
    assert first.items[4][:28] == first.items[0]
    assert first.items[0][:20] == first.items[1][:20] == first.items[12][:20] != other.items[0][:20]
    assert first.cacheable_tokens(24) == 2 * (4 * 20 + 4 * 28 + 4 * 41) - 20
    assert first.cacheable_tokens(5) == 3 * 20 + 28
    # A list that begins again was not declared, so that what a cache then holds is not either.
    assert first.cacheable_tokens(25) == first.cacheable_tokens(24)
    assert first.cacheable_tokens(48) == 2 * (first.cacheable_tokens(24) or 0)
    lengths = PromptSet.lengths(config)
    assert [str(each) for each in lengths] == ["41 (28 to 54)", "5"]


def test_without_conversations_nothing_is_meant_to_be_cached() -> None:
    """The audit then asks for a cache that serves nothing, or was switched on."""
    assert load_prompts(experiment({"count": 4}), pass_index=0, vocab_size=100).cacheable_tokens(4) is None


@pytest.mark.parametrize(
    ("prompts", "settings", "values"),
    [
        ({"turns": 2}, {"vllm": {}}, ("turns", "enable_prefix_caching: true")),
        ({"shared_prefix_tokens": 9}, {"vllm": {}}, ("shared_prefix_tokens", "enable_prefix_caching: true")),
        ({"turns": 2}, {"backend": "tensorrt"}, ("turns", "kv_cache_config: {enable_block_reuse: true}")),
        ({"turns": 2, "source": "bundled"}, {}, ("turns", "synthetic", "bundled")),
        ({"turns": 0}, {}, ("turns", "1")),
    ],
)
def test_conversations_without_a_cache_or_of_given_texts_are_refused(
    prompts: dict[str, Any], settings: dict[str, Any], values: tuple[str, ...]
) -> None:
    """What they repeat would be computed again, which is another workload."""
    without = {key: value for key, value in CACHED.items() if key != "vllm" or "backend" not in settings}
    with raises(ValueError, *values):
        ExperimentConfig.model_validate({**without, "workload": {"prompts": prompts}, **settings})
