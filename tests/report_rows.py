"""Stored results for tests: a real sample with some of its values changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from wattdock.analysis.result import ExperimentResult
from wattdock.records.folder import BRACKETS, TIMELINE, timeline_schema
from wattdock.store import StoredResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLE = Path(__file__).parent / "data/result.json"
TOKENS = 1000
STEP_NS = 100_000_000


def document(changes: Mapping[str, Any] = {}, *, restarts: Sequence[float] = ()) -> dict[str, Any]:
    """Return the sample with values changed, each by its dotted place.

    Args:
        restarts: Joules per output token of one pass each, instead of the sample's own passes.
    """
    made: dict[str, Any] = json.loads(SAMPLE.read_text())
    if restarts:
        energy = made["energy"]
        [first, *_] = energy["passes"]
        parts = {"output_tokens": TOKENS, "pass": 0}
        energy["passes"] = [
            first | parts | {"restart": at, "total_j": cost * TOKENS, "energy_per_output_token_j": cost}
            for at, cost in enumerate(restarts)
        ]
        energy["energy_per_output_token_j"] = sum(restarts) / len(restarts)
        energy["total_j"] = sum(restarts) * TOKENS
    for place, value in changes.items():
        *parents, last = place.split(".")
        part = made
        for parent in parents:
            part = part[int(parent)] if isinstance(part, list) else part[parent]
        part[last] = value
    return made


def row(name: str, changes: Mapping[str, Any] = {}, *, restarts: Sequence[float] = ()) -> StoredResult:
    """Return a stored result without files, its experiment's id made of `name`."""
    own = {"experiment_id": name * 8, "study": None, "config.name": name, **changes}
    return StoredResult(
        Path(f"20260101T000000-fake-{name}"), ExperimentResult.model_validate(document(own, restarts=restarts))
    )


def with_timeline(
    result: StoredResult, folder: Path, values: Mapping[tuple[str | None, str], Sequence[float]]
) -> StoredResult:
    """Return a result in a folder with a stored timeline: series by GPU (None: the host's), a value every 0.1 s."""
    begin_ns = min(span.start_ns for span in result.result.spans)
    samples = [
        {"restart": 0, "pass": None, "clock": "", "gpu_uuid": uuid, "series": series, "at_ns": at_ns, "value": value}
        | dict.fromkeys(BRACKETS, at_ns)
        for (uuid, series), course in values.items()
        for at_ns, value in zip(range(begin_ns, begin_ns + len(course) * STEP_NS, STEP_NS), course, strict=True)
    ]
    restart = folder / "restarts/0"
    restart.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(samples, schema=timeline_schema()), restart / TIMELINE)
    return StoredResult(folder, result.result)
