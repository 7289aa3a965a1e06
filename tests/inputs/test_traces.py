"""Files of lengths and traces of requests, as BurstGPT, Azure and Mooncake write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refused import raises

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError
from wattdock.inputs import PromptSet, check_prompts, load_prompts

if TYPE_CHECKING:
    from pathlib import Path

OURS = "output_tokens,input_tokens,arrival_s\n20,470,0\n240,1090,40\n\n280,420,113.5\n"


def experiment(path: Path, **work: Any) -> ExperimentConfig:
    """Return an experiment whose prompts come from a file."""
    workload = {"prompts": {"source": str(path), "count": 3}, **work}
    return ExperimentConfig.model_validate({"backend": "vllm", "model": "shape:tiny-llama", "workload": workload})


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    """Return the path of a file with a text."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def test_prompts_of_a_file_of_lengths_are_drawn_ids_and_their_own_limits_of_answers(tmp_path: Path) -> None:
    """Pairs stay together; the next pass, which goes through the file again, repeats lengths and no prompt."""
    path = written(
        tmp_path, '{"input_tokens": 5, "output_tokens": 50}\n{"input_tokens": 6, "output_tokens": 60}\n', "p.jsonl"
    )
    first, second = (load_prompts(experiment(path), pass_index=index, vocab_size=1000) for index in (0, 1))
    assert {len(item) * 10 for item in first.items} == {50, 60}
    assert tuple(len(item) * 10 for item in first.items) == first.max_output_tokens
    assert set(map(tuple, first.items)).isdisjoint(map(tuple, second.items))
    assert check_prompts(experiment(path), has_tokenizer=False) == first.sha256


def test_lengths_of_a_file_stand_in_the_plan_with_mean_and_range(tmp_path: Path) -> None:
    """Of prompts and of answers; text has no length before it is tokenised."""
    lengths = PromptSet.lengths(experiment(written(tmp_path, OURS)))
    assert [str(each) for each in lengths] == ["660 (420 to 1090)", "180 (20 to 280)"]
    text = PromptSet.lengths(experiment(written(tmp_path, '{"prompt": "a"}', "text.jsonl"), max_output_tokens=9))
    assert (text[0], str(text[1])) == (None, "9")


def test_a_trace_without_arrival_times_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """Its lengths alone are a workload of any other kind of arrival."""
    path = written(tmp_path, "input_tokens,output_tokens,arrival_s\n4,5,1\n", "whole.csv")
    lacking = written(tmp_path, "input_tokens,output_tokens\n4,5\n")
    check_prompts(experiment(path, arrival="trace"), has_tokenizer=False)
    check_prompts(experiment(lacking, arrival="closed"), has_tokenizer=False)
    with raises(ConfigError, "trace.csv"):
        check_prompts(experiment(lacking, arrival="trace"), has_tokenizer=False)
    crowded = experiment(path, arrival="poisson", rate_per_s=1e6, min_duration_s=60)
    with raises(ConfigError, "60,000,000"):
        check_prompts(crowded, has_tokenizer=False)
    with raises(ValueError, "prompts.source"):
        ExperimentConfig.model_validate({"backend": "vllm", "workload": {"arrival": "trace"}})
