"""How far two results generated the same tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wattdock.errors import ConfigError
from wattdock.records.folder import requests_schema
from wattdock.reports.token_agreement import Agreement, Answer, agreement, agreement_of, answers

SCHEMA = requests_schema()
BARE = dict.fromkeys(SCHEMA.names) | {"one_token": False, "restart": 0, "pass": 1, "index": 0}


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


@dataclass(frozen=True)
class Drawn:
    """By whom, and where, random weights were drawn."""

    backend: str = "vllm"
    tensor: int = 1
    told: str | None = None
    gpu: str | None = "NVIDIA H200"
    experts: bool = False


def stored(folder: Path, drawn: Drawn, weights: str) -> Path:
    """Return a result folder of one request with its tokens."""
    row = json.loads((Path(__file__).parent / "../data/result.json").read_text(encoding="utf-8"))
    row["config"]["backend"] = drawn.backend
    seen = row["environment"]
    seen["model"]["weights"] = weights
    seen["gpu_names"] = [drawn.gpu] * drawn.tensor if drawn.gpu else []
    seen["parallelism"] = {"kind": "tensor", "tensor_parallel_size": drawn.tensor} if drawn.tensor > 1 else {}
    told = {"random_weights_drawn": drawn.told} if drawn.told else {}
    seen["engine_args"] = told | {"enable_expert_parallel": drawn.experts}
    (folder / "restarts/0").mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(row), encoding="utf-8")
    request = dict.fromkeys(SCHEMA.names) | {
        "one_token": False,
        "restart": 0,
        "pass": 1,
        "index": 0,
        "output_ids": [5, 7],
    }
    pq.write_table(pa.Table.from_pylist([request], schema=SCHEMA), folder / "restarts/0/requests.parquet")
    return folder


RANDOM, READ = "random(uniform [-0.001, 0.001), seed 0)", "checkpoint"
WHOLE, TORCH = Drawn(told="whole"), Drawn("pytorch")


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        (Drawn(), Drawn(tensor=4), "vllm's shards on NVIDIA H200, tensor_parallel_size 1 and of vllm's shards on NV"),
        (WHOLE, Drawn(tensor=4, told="per shard"), "whole tensors on NVIDIA H200 and of vllm's shards on NVIDIA H200"),
        (Drawn(), TORCH, "vllm's shards on NVIDIA H200, tensor_parallel_size 1 and of whole tensors on NVIDIA H200"),
        (TORCH, Drawn("pytorch", gpu="NVIDIA L4"), "whole tensors on NVIDIA H200 and of whole tensors on NVIDIA L4"),
        (TORCH, Drawn("pytorch", gpu=None), "whole tensors on NVIDIA H200 and of whole tensors on a CPU"),
        (Drawn(tensor=2), Drawn(tensor=2, experts=True), "tensor_parallel_size 2, experts apart differ"),
        (Drawn(told="mixed"), Drawn(told="mixed"), "vllm's shards .mixed with whole tensors. on NVIDIA H200"),
        (Drawn(tensor=4), Drawn(tensor=4), None),
        (WHOLE, Drawn(tensor=4, told="whole"), None),
        (WHOLE, TORCH, None),
        (TORCH, Drawn("pytorch", tensor=4), None),
        (Drawn("tensorrt"), Drawn("tensorrt", tensor=4, gpu="NVIDIA L4"), None),
    ],
)
def test_two_draws_of_random_weights_are_two_models(
    tmp_path: Path, one: Drawn, other: Drawn, refused: str | None
) -> None:
    """One draw is shared out or seen whole; each model of GPU has a generator of its own, but for a host's."""
    folders = [stored(tmp_path / str(number), drawn, RANDOM) for number, drawn in enumerate((one, other))]
    if refused is None:
        assert agreement(*folders).identical == 1
    else:
        with pytest.raises(ConfigError, match=refused):
            agreement(*folders)


def test_weights_that_were_read_are_the_same_for_all(tmp_path: Path) -> None:
    """However a model is split."""
    folders = [stored(tmp_path / str(tensor), Drawn(tensor=tensor), READ) for tensor in (1, 4)]
    assert agreement(*folders).identical == 1


def test_an_answer_of_no_tokens_is_told_apart_from_one_that_was_not_told(tmp_path: Path) -> None:
    """A reproduction counts the first as equal to itself, and the second not at all."""
    ids = [[5, 7], [], None]
    columns = {"restart": [0] * 3, "pass": [1] * 3, "index": [0, 1, 2], "output_ids": ids, "prompt_tokens": [4] * 3}
    rows = [
        dict.fromkeys(SCHEMA.names) | {"one_token": False} | dict(zip(columns, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    (tmp_path / "restarts/0").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path / "restarts/0/requests.parquet")
    expected = {(0, 1, 0): Answer((5, 7), 4), (0, 1, 1): Answer((), 4), (0, 1, 2): Answer(None, 4)}
    assert answers(tmp_path) == expected
