"""Marks of a command's processes: counted as written, whatever else lies in their files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import raises
from seams.runner import Marks

from wattdock.errors import RunnerError

if TYPE_CHECKING:
    from pathlib import Path

PROCESS = ["process", 1, 7, None, 0]
# What a line holds that is no mark.
NO_MARKS: tuple[Any, ...] = (
    *(None, 7, "text", {}, [], ["span"], ["span", "a", 2, 1, 1], ["span", "", 1, 2, 1], ["span", "a", 1, 2, True]),
    *(["span", "a", 1.5, 2, 1], ["span", "a\nb", 1, 2, 1], ["step", 1], ["step", -1, 1], ["step", 1, 2**44]),
    *(["work", 1], ["work", 1, []], ["work", 1, {"a": -1}], ["work", 1, {"a": 0.5}], ["work", 1, {"": 1}]),
    *(["work", 1, {"a": 2**44}], ["step", 2**63, 1], ["work", 1, {"a": None}]),
)
Spans = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), min_size=1, max_size=12)


def write(folder: Path, process: int, *lines: Any, end: str = "\n") -> None:
    with (folder / f"{process}-0.jsonl").open("a") as file:
        file.write("\n".join(json.dumps(line) for line in lines) + end)


def read(folder: Path) -> Marks:
    marks = Marks(folder)
    marks.read()
    return marks


def test_work_is_summed_over_ranks_and_steps_and_spans_are_those_of_the_rank_that_marked_most(tmp_path: Path) -> None:
    marks = Marks(tmp_path)
    for rank, steps in ((1, 3), (2, 2)):
        write(tmp_path, rank, PROCESS)
        for at_ns in range(rank, 10 * steps, 10):
            write(tmp_path, rank, ["step", at_ns, 1], ["work", at_ns, {"samples": 32}])
            write(tmp_path, rank, ["span", "step", at_ns, at_ns + 5, 1])
        # A command under way is read again and again.
        marks.read()
    assert marks.units() == {"samples": 160, "steps": 3}
    assert (marks.first_ns, marks.latest_ns, marks.malformed) == (1, 26, 0)
    by_step, samples = marks.series("steps"), marks.series("samples")
    assert (marks.counting("samples"), marks.counting("steps"), marks.counting("tokens")) == (2, 1, 0)
    assert (by_step.at_ns.tolist(), by_step.output_tokens.tolist()) == ([1, 11, 21], [1, 2, 3])
    assert (samples.at_ns.tolist(), samples.output_tokens[-1]) == ([1, 2, 11, 12, 21], 160)
    [marked] = marks.marked()
    assert (marked.name, marked.count, marked.spans) == ("step", 3, ((1, 7), (11, 17), (21, 26)))


@pytest.mark.parametrize("line", NO_MARKS, ids=str)
def test_a_line_that_is_no_mark_is_counted_and_costs_no_other(tmp_path: Path, line: Any) -> None:
    write(tmp_path, 1, PROCESS, ["work", 1, {"samples": 1}], line, ["later kind", 1], ["work", 2, {"samples": 1}])
    write(tmp_path, 1, ["work", 3, {"samples": 100}], end="")
    marks = read(tmp_path)
    assert (marks.units(), marks.malformed, marks.latest_ns) == ({"samples": 2}, 1, 2)


@given(ranks=st.lists(Spans, min_size=1, max_size=4))
def test_where_any_rank_was_inside_a_span_is_told_once(tmp_path_factory: pytest.TempPathFactory, ranks: Any) -> None:
    """Against a clock of 100 ns, of which each is looked at."""
    folder = tmp_path_factory.mktemp("marks")
    inside = np.zeros(100, dtype=bool)
    for rank, spans in enumerate(ranks):
        write(folder, rank, *(["span", "s", start, start + length, 1] for start, length in spans))
        for start, length in spans:
            inside[start : start + length] = True
    [marked] = read(folder).marked()
    assert marked.count == max(map(len, ranks))
    assert sum(end - start for start, end in marked.spans) == inside.sum()
    edges = [edge for span in marked.spans for edge in span]
    assert edges == sorted(edges)


def test_more_spans_than_are_told_apart_become_one_where_they_are_closer_than_a_meter_resolves(tmp_path: Path) -> None:
    close = [["span", "close", 2_000 * i, 2_000 * i + 1_000, 1] for i in range(1, 4_100)]
    apart = [["span", "apart", 3_000_000 * i, 3_000_000 * i + 1_000, 1] for i in range(1, 4_100)]
    write(tmp_path, 1, *close, *apart)
    marked = {part.name: part for part in read(tmp_path).marked()}
    assert (marked["close"].count, len(marked["close"].spans)) == (4_099, 1)
    assert (marked["apart"].count, marked["apart"].spans) == (4_099, ())


def test_more_marks_than_a_record_has_room_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattdock.runner.marks.MOST_MARKS", 10)
    write(tmp_path, 1, *(["step", i, 1] for i in range(11)))
    with raises(RunnerError, "more than 10 marks", "mark larger parts"):
        read(tmp_path)
    monkeypatch.undo()
    many = tmp_path / "names"
    many.mkdir()
    write(many, 1, *(["span", f"step {i}", 1, 2, 1] for i in range(66)))
    with raises(RunnerError, "64 names"):
        read(many)


def test_steps_are_common_to_all_ranks_however_a_script_spells_them(tmp_path: Path) -> None:
    for rank in (1, 2):
        write(tmp_path, rank, PROCESS, ["work", 5, {"steps": 2, "samples": 3}], ["step", 9, 1])
    marks = read(tmp_path)
    assert marks.units() == {"samples": 6, "steps": 3}
    assert marks.series("steps").output_tokens.tolist() == [2, 3]


def test_a_rank_that_counts_in_several_processes_is_told_and_one_without_a_number_is_not(tmp_path: Path) -> None:
    """Loaders of data have their rank's number; two commands of one script have none."""
    for process, rank in ((1, 0), (2, 0), (3, 1), (4, None), (5, None), (6, 1)):
        write(tmp_path, process, ["process", 1, process, rank, 0])
        write(tmp_path, process, ["work", 1, {"samples" if process < 6 else "tokens": 4}])
    marks = read(tmp_path)
    assert (marks.repeated("samples"), marks.repeated("tokens"), marks.units()["samples"]) == (1, 0, 20)


def test_steps_and_spans_of_processes_one_after_the_other_add_up_and_of_those_at_work_together_do_not(
    tmp_path: Path,
) -> None:
    """Two ranks without numbers from 0 to 50, and after them two more from 60 on, as of `python a.py; python b.py`."""
    for process, begin_ns, steps in ((1, 1, 5), (2, 2, 4), (3, 60, 3), (4, 61, 3)):
        write(tmp_path, process, ["process", 1, process, None, begin_ns])
        write(tmp_path, process, *(["step", begin_ns + 9 * i, 1] for i in range(steps)))
        write(tmp_path, process, ["span", "epoch", begin_ns, begin_ns + 40, 1])
    marks = read(tmp_path)
    assert marks.units() == {"steps": 8}
    assert marks.series("steps").at_ns.tolist() == [1, 10, 19, 28, 37, 60, 69, 78]
    assert [(part.name, part.count) for part in marks.marked()] == [("epoch", 2)]
