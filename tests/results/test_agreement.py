"""How far two results generated the same tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wattdock.errors import ConfigError
from wattdock.results.agreement import Agreement, Answer, agreement, agreement_of, answers
from wattdock.results.tables import REQUESTS_SCHEMA


def test_equal_tokens_agree_wholly() -> None:
    """Requests that only one of them has do not count."""
    assert agreement_of({(0, 0, 0): [1, 2], (0, 0, 1): [3]}, {(0, 0, 0): [1, 2]}) == Agreement(1, 1, 1.0, None)


def test_what_follows_a_first_difference_agrees_by_chance_only() -> None:
    """Two of four tokens before it in one request, all three in another."""
    first = {(0, 0, 0): [1, 2, 3, 4], (0, 0, 1): [7, 8, 9]}
    second = {(0, 0, 0): [1, 2, 9, 4], (0, 0, 1): [7, 8, 9]}
    assert agreement_of(first, second) == Agreement(2, 1, 5 / 7, 2)


def test_an_answer_that_ends_early_differs_where_it_ends() -> None:
    """Its tokens are a prefix, and still another answer."""
    assert agreement_of({(0, 0, 0): [1, 2]}, {(0, 0, 0): [1, 2, 3]}) == Agreement(1, 0, 1.0, 2)


def test_nothing_in_common_is_no_agreement() -> None:
    """Not even a perfect one."""
    with pytest.raises(ConfigError, match="no request"):
        agreement_of({(0, 0, 0): [1]}, {(1, 0, 0): [1]})


def stored(folder: Path, backend: str, tensor: int, drawn: str | None, weights: str) -> Path:
    """Return a result folder of one request with its tokens."""
    row = json.loads((Path(__file__).parent / "samples/v3.json").read_text(encoding="utf-8"))
    row["config"]["backend"] = backend
    row["environment"]["model"]["weights"] = weights
    row["environment"]["parallelism"] = {"kind": "tensor", "tensor_parallel_size": tensor} if tensor > 1 else {}
    row["environment"]["engine_args"] = {"random_weights_drawn": drawn} if drawn else {}
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(row), encoding="utf-8")
    request = dict.fromkeys(REQUESTS_SCHEMA.names) | {"restart": 0, "pass": 1, "index": 0, "output_ids": [5, 7]}
    pq.write_table(pa.Table.from_pylist([request], schema=REQUESTS_SCHEMA), folder / "requests.parquet")
    return folder


RANDOM, READ = "random(uniform [-0.001, 0.001), seed 0)", "checkpoint"
ONE, FOUR = ("vllm", 1, None), ("vllm", 4, None)
ALONE, SPLIT, SHARDS = ("vllm", 1, "whole"), ("vllm", 4, "whole"), ("vllm", 4, "per shard")
TORCH, RANKS = ("pytorch", 1, None), ("pytorch", 4, None)


@pytest.mark.parametrize(
    ("one", "other", "weights", "refused"),
    [
        (
            ONE,
            FOUR,
            RANDOM,
            "vllm's shards on a GPU, tensor_parallel_size 1 and of vllm's shards on a GPU, tensor_para",
        ),
        (ALONE, SHARDS, RANDOM, "whole tensors on a GPU and of vllm's shards on a GPU, tensor_parallel_size 4"),
        (ONE, TORCH, RANDOM, "vllm's shards on a GPU, tensor_parallel_size 1 and of whole tensors on a GPU"),
        (ONE, FOUR, READ, None),
        (FOUR, FOUR, RANDOM, None),
        (ALONE, SPLIT, RANDOM, None),
        (ALONE, TORCH, RANDOM, None),
        (TORCH, RANKS, RANDOM, None),
    ],
)
def test_two_draws_of_random_weights_are_two_models(
    tmp_path: Path,
    one: tuple[str, int, str | None],
    other: tuple[str, int, str | None],
    weights: str,
    refused: str | None,
) -> None:
    """One draw is shared out or seen whole; files are the same for all."""
    folders = [stored(tmp_path / str(number), *what, weights) for number, what in enumerate((one, other))]
    if refused is None:
        assert agreement(*folders).identical == 1
    else:
        with pytest.raises(ConfigError, match=refused):
            agreement(*folders)


def test_an_answer_of_no_tokens_is_told_apart_from_one_that_was_not_told(tmp_path: Path) -> None:
    """A reproduction counts the first as equal to itself, and the second not at all."""
    ids = [[5, 7], [], None]
    columns = {"restart": [0] * 3, "pass": [1] * 3, "index": [0, 1, 2], "output_ids": ids, "prompt_tokens": [4] * 3}
    rows = [
        dict.fromkeys(REQUESTS_SCHEMA.names) | dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS_SCHEMA), tmp_path / "requests.parquet")
    expected = {(0, 1, 0): Answer((5, 7), 4), (0, 1, 1): Answer((), 4), (0, 1, 2): Answer(None, 4)}
    assert answers(tmp_path) == expected
