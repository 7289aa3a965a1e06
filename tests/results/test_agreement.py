"""How far two results generated the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wattdock.errors import ConfigError
from wattdock.results.agreement import Agreement, Answer, agreement_of, answers
from wattdock.results.tables import REQUESTS_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path


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
