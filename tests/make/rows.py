"""Stored results for tests: a real sample with some of its values changed."""

from __future__ import annotations

import json
from math import exp, prod, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from seams.analysis import T_FACTORS, Budget, Entry, Interval, WindowFigure
from seams.metering import HostTimeline, Series, Ticks
from seams.records import COUNTER

from wattdock.analysis import ExperimentResult
from wattdock.metering import GpuTimeline, Span, Timeline
from wattdock.records import RestartRecord, disk
from wattdock.store import StoredResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLE = Path(__file__).parents[1] / "data/result.json"
TOKENS = 1000
STEP_NS = 100_000_000
PASS_S = 20.0


def document(changes: Mapping[str, Any] = {}, *, restarts: Sequence[float] = ()) -> dict[str, Any]:
    """Return the sample with values changed, each by its dotted place.

    Args:
        restarts: Joules per output token of one pass each, instead of the sample's own passes; nothing else makes the
            figure uncertain.
    """
    made: dict[str, Any] = json.loads(SAMPLE.read_text())
    if restarts:
        energy = made["energy"]
        [first, *_] = energy["passes"]
        parts = {"output_tokens": TOKENS, "pass": 0}
        energy["passes"] = [
            first | parts | {"restart": at, "total_j": cost * TOKENS, "measured_per_output_token_j": cost}
            for at, cost in enumerate(restarts)
        ]
        energy["measured_per_output_token_j"] = sum(restarts) / len(restarts)
        energy["total_j"] = sum(restarts) * TOKENS
        made["budget"] = restarts_budget(restarts).model_dump(mode="json")
    for place, value in changes.items():
        *parents, last = place.split(".")
        part = made
        for parent in parents:
            part = part[int(parent)] if isinstance(part, list) else part[parent]
        part[last] = value
    return with_windows(made)


def with_windows(made: dict[str, Any]) -> dict[str, Any]:
    """Give a result the windows of its headline: its passes, whole."""
    if (energy := made["energy"]) and energy.get("windows"):
        named = {"window": energy["windows"]["headline"]}
        figures = (each for each in WindowFigure.model_fields if each not in ("window", "pass_index"))
        names = ["pass", *figures]
        energy["windows"]["passes"] = [named | {name: part.get(name) for name in names} for part in energy["passes"]]
    return made


def restarts_budget(restarts: Sequence[float], weights: Sequence[float] | None = None) -> Budget:
    """Return the budget of J/token of these restarts, with no other entry; from three restarts on with an interval."""
    value, freedom = fmean(restarts, weights), len(restarts) - 1
    error = float(np.std(np.log(restarts), ddof=1)) / sqrt(len(restarts)) if freedom and min(restarts) > 0 else 0.0
    entry = Entry(
        name="restarts", standard_uncertainty=error, kind="A", degrees_of_freedom=freedom, share=1.0, found="made up"
    )
    figure: dict[str, Any] = {"measured": value, "energy_per_unit_j": value, "entries": [entry]}
    figure["per_restart"] = restarts
    if freedom < 2:
        return Budget(**figure, reason=f"{len(restarts)} restarts: too few for an interval, 3 are the least")
    half = T_FACTORS[freedom - 1] * error
    interval = Interval(value * exp(-half), value * exp(half))
    return Budget(**figure, standard_uncertainty=error, degrees_of_freedom=freedom, expanded=half, interval=interval)


def split_document(
    split: dict[str, int],
    tokens_per_s: Sequence[float],
    power_w: Sequence[float] | None,
    *,
    batch_size: int = 128,
) -> dict[str, Any]:
    """Return a result of vLLM whose restarts, one pass each, had these speeds and these watts over all GPUs.

    Args:
        split: As a runner says it, `tensor_parallel_size` and the like; `device_map` for its number of GPUs.
        power_w: None: energy was not measured.
    """
    gpus = prod(split.values())
    uuids = [f"GPU-00000000-0000-0000-0000-{number:012}" for number in range(1, gpus + 1)]
    is_map = "device_map" in split
    parallelism = {"kind": "device_map", "devices": dict.fromkeys(uuids, 1)} if is_map else {"kind": "x", **split}
    made = document(
        {
            "config.backend": "vllm",
            "config.vllm": {"dtype": "bfloat16", **split},
            "config.name": str(split),
            "config.workload.batch_size": batch_size,
            "environment.backend": "vllm",
            "environment.runner.framework_version": "0.26.0",
            "environment.runner.parallelism": parallelism,
            "environment.gpu_count": gpus,
            "environment.gpu_names": ["NVIDIA H200"] * gpus,
            "environment.gpu_uuids": uuids,
        }
    )
    [first, *_] = made["energy"]["passes"]
    passes = []
    for restart, speed in enumerate(tokens_per_s):
        total_j = power_w[restart] * PASS_S if power_w else None
        measured = {"duration_s": PASS_S, "output_tokens": round(speed * PASS_S), "total_j": total_j}
        passes.append(first | measured | {"restart": restart, "pass": 0})
    made["energy"]["passes"] = passes
    costs = [watts / speed for watts, speed in zip(power_w or (), tokens_per_s, strict=bool(power_w))]
    made["budget"] = restarts_budget(costs, tokens_per_s).model_dump(mode="json") if costs else None
    return with_windows(made)


def split_result(*args: Any, **options: Any) -> ExperimentResult:
    """Return the same as a result that was read."""
    return ExperimentResult.model_validate(split_document(*args, **options))


def reason(name: str, found: str = "") -> dict[str, str]:
    """Return a reason against publishing, as a stored result holds it."""
    return {"question": "wrong", "name": name, "status": "fail", "found": found}


def row(name: str, changes: Mapping[str, Any] = {}, *, restarts: Sequence[float] = ()) -> StoredResult:
    """Return a stored result without files, its experiment's id made of `name`."""
    own = {"experiment_id": name * 8, "study": None, "config.name": name, **changes}
    return StoredResult(
        Path(f"20260101T000000-fake-{name}"), ExperimentResult.model_validate(document(own, restarts=restarts))
    )


def with_timeline(
    stored: StoredResult, folder: Path, values: Mapping[tuple[str | None, str], Sequence[float]]
) -> StoredResult:
    """Return a result in a folder with one restart's record: series by GPU (None: the host's), a value every 0.1 s.

    The series `COUNTER` is a GPU's energy counter, in millijoules.
    """
    begin_ns = min(span.start_ns for span in stored.result.spans)
    gpus: dict[str, GpuTimeline] = {}
    host: dict[str, Series] = {}
    for (uuid, name), course in values.items():
        at_ns = begin_ns + STEP_NS * np.arange(len(course))
        series = Series(at_ns, np.asarray(course, dtype=np.float64))
        if uuid is None:
            host[name] = series
        elif name == COUNTER:
            ticks = Ticks(at_ns, at_ns, at_ns, at_ns, series.value.astype(np.int64))
            gpus[uuid] = GpuTimeline(uuid, "counter", ticks)
        else:
            gpus[uuid] = GpuTimeline(uuid, None, Ticks.from_rows(), {name: series})
    timeline = Timeline("nvml", begin_ns, begin_ns + STEP_NS, gpus, host=HostTimeline(host))
    spans = tuple(Span(span.name, span.start_ns, span.end_ns) for span in stored.result.spans)
    record = RestartRecord(0, environment=stored.result.environment, spans=spans, timeline=timeline)
    of_one = [span.model_copy(update={"restart": 0}) for span in stored.result.spans]
    result = stored.result.model_copy(update={"spans": of_one})
    (folder / "restarts").mkdir(parents=True, exist_ok=True)
    disk.write(record, folder / "restarts/0")
    return StoredResult(folder, result)
