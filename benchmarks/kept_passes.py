"""What a study has kept of each pass, in its records and its stored rows, and how two states of it compare.

Reads only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.execution.study_folder import JOURNAL, PASS, RECORDS, STORED, STUDIES, read_journal
from wattdock.records import find_restarts, read_restart
from wattdock.store.folders import RESULT, load_requests, load_restarts, load_result
from wattdock.store.selection import Row, without_superseded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from wattdock.execution.study_folder import Line
    from wattdock.records.restart import RestartRecord

# Experiment id, restart, pass.
Key = tuple[str, int, int]
COUNTS = ("prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Kept:
    """What was measured of a pass: its instants, and every request's counts, instants and tokens, as text."""

    start_ns: int
    end_ns: int
    requests: tuple[str, ...]


@dataclass(frozen=True)
class Rows:
    """What stands of a study's rows.

    Attributes:
        said: Those that its journal says are stored.
        unsaid: Whole ones of which it does not say so.
        half: Folders of rows that were being written.
    """

    said: int
    unsaid: int
    half: int


@dataclass(frozen=True)
class PassShape:
    """What two measurements of one pass must agree in."""

    requests: int
    prompt_tokens: int | None
    output_tokens: int


@dataclass(frozen=True)
class RowShape:
    """A row's status and passes, by (restart, pass)."""

    status: str
    passes: Mapping[tuple[int, int], PassShape]


Passes = dict[Key, Kept]


def passes_noted(output_dir: Path) -> int:
    """Return how many passes the one study in `output_dir` has in its journal."""
    return len(_noted(output_dir))


def rows_standing(output_dir: Path) -> Rows:
    """Return how far the rows of the one study in `output_dir` have come."""
    said = {line["folder"] for line in _lines(output_dir) if line["event"] == STORED}
    whole = {file.parent.name for file in output_dir.glob(f"[!.]*/{RESULT}")}
    return Rows(len(said), len(whole - said), sum(1 for _ in output_dir.glob(".*/")))


def kept_passes(output_dir: Path) -> Passes:
    """Return every pass in the journal as its record or its row holds it; `unheld` names those that neither holds."""
    found = dict(_in_rows(output_dir))
    ids = {experiment[:16]: experiment for experiment, _, _ in _noted(output_dir)}
    for records in output_dir.glob(f"{STUDIES}/*/{RECORDS}"):
        for folder in find_restarts(records):
            if experiment := ids.get(folder.name.partition("-")[0]):
                found |= _in_record(experiment, read_restart(folder))
    return {key: found[key] for key in _noted(output_dir) if key in found}


def unheld(output_dir: Path, kept: Passes) -> list[str]:
    """Return which passes of the journal are not among those `kept`: noted, and in no record and no row."""
    return [f"{_name(key)} stands in the journal and nowhere else" for key in _noted(output_dir) if key not in kept]


def changed_conditions(output_dir: Path) -> list[str]:
    """Return the rows whose passes were not all measured on and with the same, or where nobody recorded that."""
    found = []
    for row in _rows(output_dir):
        seen, label = row.result.environment, f"experiment {row.result.experiment_id[:8]}"
        if seen is None or seen.changes is None:
            found.append(f"{label}: what its runners were measured on was not recorded")
        else:
            found += [f"{label}: its runners differed in {one.name}: {', '.join(one.restarts)}" for one in seen.changes]
    return found


def lost(before: Passes, after: Passes) -> list[str]:
    """Return which passes of `before` are not in `after` as they were."""
    gone = [f"{_name(key)} is gone" for key in before if key not in after]
    changed = [f"{_name(key)} has changed" for key in before if key in after and after[key] != before[key]]
    return gone + changed


def doubled(output_dir: Path) -> list[str]:
    """Return which passes were measured twice: noted twice, or twice among the rows that count."""
    noted, rows = Counter(_noted(output_dir)), Counter(key for row in _rows(output_dir) for key in _keys(row))
    found = [f"{_name(key)} stands in the journal {count} times" for key, count in noted.items() if count > 1]
    found += [f"{_name(key)} stands in the rows {count} times" for key, count in rows.items() if count > 1]
    return found + [f"{_name(key)} was measured and never noted" for key in rows if key not in noted]


def shape(output_dir: Path) -> dict[str, RowShape]:
    """Return the shape of every row that counts, by experiment id."""
    return {row.result.experiment_id: _row_shape(row) for row in _rows(output_dir)}


def shape_differences(one: Mapping[str, RowShape], other: Mapping[str, RowShape]) -> list[str]:
    """Return in what two studies' tables differ."""
    found = [f"experiment {key[:8]} is in one of the two only" for key in one.keys() ^ other.keys()]
    for key in one.keys() & other.keys():
        first, second = one[key], other[key]
        if first.status != second.status:
            found.append(f"experiment {key[:8]}: {first.status}, left alone {second.status}")
        places = sorted(first.passes.keys() | second.passes.keys())
        pairs = [(place, first.passes.get(place), second.passes.get(place)) for place in places]
        found += [f"{_name((key, *place))}: {a}, left alone {b}" for place, a, b in pairs if a != b]
    return found


def _lines(output_dir: Path) -> list[Line]:
    return [line for journal in output_dir.glob(f"{STUDIES}/*/{JOURNAL}") for line in read_journal(journal)]


def _noted(output_dir: Path) -> list[Key]:
    lines = _lines(output_dir)
    return [(line["experiment"], line["restart"], line["pass"]) for line in lines if line["event"] == PASS]


def _rows(output_dir: Path) -> list[Row]:
    folders = sorted(file.parent for file in output_dir.glob(f"[!.]*/{RESULT}"))
    return without_superseded([Row(folder, load_result(folder)) for folder in folders])


def _keys(row: Row) -> list[Key]:
    spans = [span for span in row.result.spans if span.pass_index is not None]
    return [(row.result.experiment_id, span.restart, span.pass_index or 0) for span in spans]


def _in_rows(output_dir: Path) -> Iterator[tuple[Key, Kept]]:
    for row in _rows(output_dir):
        for record in load_restarts(row.folder):
            yield from _in_record(row.result.experiment_id, record).items()


def _in_record(experiment_id: str, record: RestartRecord) -> Passes:
    return {
        (experiment_id, record.restart, measured.index): Kept(
            measured.span.start_ns, measured.span.end_ns, tuple(map(str, measured.requests))
        )
        for measured in record.passes
    }


def _row_shape(row: Row) -> RowShape:
    passes: dict[tuple[int, int], list[tuple[int | None, int | None]]] = {}
    for request in load_requests(row.folder, ["restart", "pass", *COUNTS]):
        counts = (request["prompt_tokens"], request["output_tokens"])
        passes.setdefault((request["restart"], request["pass"]), []).append(counts)
    return RowShape(row.result.status, {place: _pass_shape(counts) for place, counts in passes.items()})


def _pass_shape(counts: list[tuple[int | None, int | None]]) -> PassShape:
    prompts = [prompt for prompt, _ in counts]
    known = None if None in prompts else sum(prompt or 0 for prompt in prompts)
    return PassShape(len(counts), known, sum(output or 0 for _, output in counts))


def _name(key: Key) -> str:
    return f"experiment {key[0][:8]}, restart {key[1] + 1}, pass {key[2] + 1}"
