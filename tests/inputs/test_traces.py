"""Files of lengths and traces of requests, own ones and those that SQL makes of public ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from make.prompt_files import AZURE_2023, AZURE_2024, BAILIAN, BURSTGPT, MOONCAKE, jsonl
from refused import raises

from wattdock.config import ExperimentConfig
from wattdock.errors import ConfigError
from wattdock.inputs import PromptSet, check_prompts, load_prompts

DOCS = Path(__file__).parents[2] / "docs/how-to/studies.md"
OURS = jsonl(
    [
        {"output_tokens": 20, "input_tokens": 470, "arrival_s": 0},
        {"output_tokens": 240, "input_tokens": 1090, "arrival_s": 40},
        {"output_tokens": 280, "input_tokens": 420, "arrival_s": 113.5},
    ]
)


def experiment(path: Path, **work: Any) -> ExperimentConfig:
    """Return an experiment whose prompts come from a file."""
    workload = {"prompts": {"source": str(path), "count": 3}, "batch_size": 1, **work}
    return ExperimentConfig.model_validate({"backend": "vllm", "model": "shape:tiny-llama", "workload": workload})


def written(tmp_path: Path, text: str, name: str = "trace.jsonl") -> Path:
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
    replayed = experiment(written(tmp_path, OURS), arrival="trace", trace_speed=2)
    assert load_prompts(replayed, pass_index=0, vocab_size=9).gap_s == 113.5 / 2 / 2
    text = PromptSet.lengths(experiment(written(tmp_path, '{"prompt": "a"}', "text.jsonl"), max_output_tokens=9))
    assert (text[0], str(text[1])) == (None, "9")


def test_a_trace_without_arrival_times_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """Its lengths alone are a workload of any other kind of arrival."""
    path = written(tmp_path, '{"input_tokens": 4, "output_tokens": 5, "arrival_s": 1}', "whole.jsonl")
    lacking = written(tmp_path, '{"input_tokens": 4, "output_tokens": 5}')
    check_prompts(experiment(path, arrival="trace"), has_tokenizer=False)
    check_prompts(experiment(lacking, arrival="closed"), has_tokenizer=False)
    with raises(ConfigError, "trace.jsonl"):
        check_prompts(experiment(lacking, arrival="trace"), has_tokenizer=False)
    crowded = experiment(path, arrival="poisson", rate_per_s=1e6, min_duration_s=60)
    with raises(ConfigError, "60,000,000"):
        check_prompts(crowded, has_tokenizer=False)
    with raises(ValueError, "prompts.source"):
        ExperimentConfig.model_validate({"backend": "vllm", "workload": {"arrival": "trace"}})


@pytest.mark.parametrize(
    ("trace", "name", "text", "lengths", "arrivals_s"),
    [
        ("BurstGPT", "b.csv", BURSTGPT, [(906, 446), (36, 29), (1779, 123)], (0, 51, 100)),
        ("Azure 2023, 2024", "2023.csv", AZURE_2023, [(4808, 10), (110, 27)], (0, 0.052)),
        ("Azure 2023, 2024", "2024.csv", AZURE_2024, [(2162, 5), (2399, 6)], (0, 0.00993)),
        ("Mooncake", "m.jsonl", jsonl(MOONCAKE), [(655, 52), (672, 26), (520, 52)], (0, 10.535, 27.482)),
        ("Bailian", "q.jsonl", jsonl(BAILIAN), [(60, 4), (33, 4), (17, 4)], (0, 30.5, 61.114)),
    ],
)
def test_the_documented_sql_makes_lengths_of_each_public_trace(
    tmp_path: Path, trace: str, name: str, text: str, lengths: list[tuple[int, int]], arrivals_s: tuple[float, ...]
) -> None:
    """The block of the docs, with the columns of its table: the records' own lengths, each at its instant."""
    page = DOCS.read_text(encoding="utf-8")
    rows = {
        cells[0].strip(): [cell.strip(" `") for cell in cells[1:]]
        for line in page.split("### Public traces")[1].splitlines()
        if len(cells := line.strip("|").split("|")) == 4
    }
    columns, azure = rows[trace], rows["Azure 2023, 2024"]
    [sql] = re.findall(r'duckdb\.sql\("""(.+?)"""\)', page, re.DOTALL)
    for documented, column in zip(azure, columns, strict=True):
        assert f"{documented} AS " in sql
        sql = sql.replace(f"{documented} AS ", f"{column} AS ")
    source, target = written(tmp_path, text, name), tmp_path / "trace.jsonl"
    duckdb.sql(sql.replace("azure.csv", str(source)).replace("trace.jsonl", str(target)))
    count = len(arrivals_s)
    config = experiment(target, arrival="trace", min_requests=count)
    sent = load_prompts(config, pass_index=0, vocab_size=1000, min_requests=count)
    assert list(zip(map(len, sent.items), sent.max_output_tokens, strict=True)) == lengths
    assert [at_ns / 1e9 for at_ns in sent.arrivals_ns] == pytest.approx(arrivals_s, abs=1e-6)
