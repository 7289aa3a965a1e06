"""What leaves as JSON is JSON."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from make.rows import document
from make.stored import stored
from refused import raises
from sources import nodes

from wattdock.analysis import ExperimentResult
from wattdock.store import load_result, store_result
from wattdock.text import dotted, from_json, json_text

if TYPE_CHECKING:
    from conftest import Called

COORDINATOR = Path(__file__).resolve().parents[1] / "coordinator/wattdock"
# What is hashed, sent to our own runner, written for an engine, or read back by Python alone.
NO_OUTPUT = {
    "config/expand.py",
    "config/experiment.py",
    "inputs/gguf.py",
    "inputs/shapes.py",
    "inputs/prompts/passes.py",
    "inputs/prompts/formats.py",
    "publish/create.py",
    "runner/wire.py",
    "secrets.py",
    "text.py",
}


def strictly(text: str) -> Any:
    """Read JSON as everybody but Python does."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def writes_json(file: Path) -> bool:
    names = {node.attr for node in nodes(file) if isinstance(node, ast.Attribute)}
    return bool(names & {"dumps", "dump", "model_dump_json"})


def test_every_writer_of_json_goes_through_the_one_that_knows_what_json_cannot_say() -> None:
    """`json.dumps` writes NaN and pydantic null; a new writer that calls either is found here."""
    found = {str(file.relative_to(COORDINATOR)) for file in COORDINATOR.rglob("*.py") if writes_json(file)}
    assert found == NO_OUTPUT


def test_what_json_has_no_number_for_is_a_text_wherever_it_stands() -> None:
    """And everything else is as `json.dumps` has it."""
    odd = {"a": [math.inf, (-math.inf, 1.5)], "b": {"c": math.nan}, "d": None}
    assert strictly(json_text(odd)) == {"a": ["Infinity", ["-Infinity", 1.5]], "b": {"c": "NaN"}, "d": None}
    assert json_text({"x": [1, "é"]}, indent=2) == json.dumps({"x": [1, "é"]}, indent=2)


@pytest.mark.parametrize("ascii_only", [True, False])
def test_half_a_surrogate_pair_is_written_as_utf_8_and_costs_no_record(ascii_only: bool) -> None:
    """A byte that is not UTF-8 is shown as such; whole pairs stay."""
    text = json_text({"caf\udce9": ["\ud83d", "\U0001f600"]}, ascii_only=ascii_only)
    assert json.loads(text.encode()) == {r"caf\xe9": [r"\ud83d", "\U0001f600"]}


def test_a_stored_result_with_an_infinite_engine_argument_is_json_and_says_so(tmp_path: Path) -> None:
    """An engine's limit that is none must not read as an argument that was not set."""
    changed = document()
    changed["environment"]["runner"]["engine_args"] = {"longest_wait_s": math.inf}
    changed["config"]["fake"] = {"longest_wait_s": math.inf}
    result = load_result(stored(tmp_path / "made", **changed))
    folder = store_result(result, [], log=tmp_path / "none", output_dir=tmp_path / "results")
    written = strictly((folder / "result.json").read_text())
    assert written["environment"]["runner"]["engine_args"] == {"longest_wait_s": "Infinity"}
    assert written["config"]["fake"] == {"dtype": "auto", "longest_wait_s": "Infinity"}
    assert isinstance(load_result(folder), ExperimentResult)


def test_a_query_s_infinity_is_a_text_in_its_json(called: Called, tmp_path: Path) -> None:
    """The database has it as a number."""
    stored(tmp_path)
    sql = "SELECT 'inf'::DOUBLE AS a, 'nan'::DOUBLE AS b FROM results"
    done = called("results", "query", sql, "--json", "--output-dir", tmp_path)
    assert strictly(done.stdout) == [{"a": "Infinity", "b": "NaN"}]


@pytest.mark.parametrize("setting", ["workload.min_duration_s", "timeouts.load_s", "pytorch.longest_wait_s"])
def test_a_setting_without_end_is_refused_or_recorded_as_such(called: Called, tmp_path: Path, setting: str) -> None:
    """Our own settings are finite; an engine's argument is the engine's, and stands in the plan as it is."""
    done = called("plan", "--backend", "pytorch", "--set", f"{setting}=.inf", "--json", "--output-dir", tmp_path)
    if setting.startswith("pytorch"):
        assert strictly(done.stdout)[0]["pytorch"]["longest_wait_s"] == "Infinity"
    else:
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert setting in line


def test_every_leaf_has_its_dotted_name_in_order_and_an_empty_group_is_one() -> None:
    """That a section was there is a fact, too."""
    nested = {"a": {"b": {"c": 1}, "d": {}}, "e": [{"f": 2}]}
    assert list(dotted(nested)) == [("a.b.c", 1), ("a.d", {}), ("e", [{"f": 2}])]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000 + "]" * 100_000, "[" * 200 + "]" * 200, '{"a":' * 100_000 + "1" + "}" * 100_000, "9" * 5_000],
)
def test_what_python_cannot_read_as_json_is_a_value_error_like_what_is_no_json(text: str) -> None:
    """Whoever reads a file of somebody else's expects that one."""
    with raises(ValueError):
        from_json(text)


def test_json_of_others_is_read_in_one_way() -> None:
    """A reader of its own would end with a traceback where a file is nested deeply."""
    readers = [file for file in COORDINATOR.rglob("*.py") if "json.load" in file.read_text()]
    assert readers == [COORDINATOR / "text.py"]
