"""Replays recorded restarts, and compares today's results with the results recorded with them.

A case is a folder. Its `case.json` holds everything that merging reads beside the restarts, `restart-<n>.json` and
`restart-<n>.npz` one record each, in the order in which they were merged, and `expected.json` the result of then. Any
of the JSON files may be compressed. All of it is plain: no file knows the name of a class or of a module.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from seams.execution import environment
from seams.launch import Engine, Image, Pin
from seams.metering import HostTimeline, LagModel, ProcessSample, Series, Ticks, Window
from seams.records import DeclaredWork, ReplicaPass, TokenSeries

from wattdock.analysis import ExperimentResult, Fallback, StudyFacts
from wattdock.audit import audited
from wattdock.clock import ClockCheck
from wattdock.config import ExperimentConfig
from wattdock.host import Gpu, GpuInventory, GpuProcess, Link, Machine
from wattdock.inputs import ModelFolder
from wattdock.launch import LauncherChoice
from wattdock.metering import GpuTimeline, MeterChoice, MeterEvent, Span, Timeline
from wattdock.planning import ExecutionPlan
from wattdock.records import Failure, PassRecord, RequestRecord, RestartRecord, RunnerEnvironment, WarmUpSample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Plain = dict[str, Any]

# ---- The adapter: from plain values to today's classes and back. Whoever renames one of them changes only this, and
# ---- the imports above.


def merged(case: Plain, restarts: Sequence[Plain]) -> Plain:
    """Return what a case merges to, as a result file holds it."""
    result, _ = analysed(case, restarts)
    plain: Plain = json.loads(json.dumps(result.model_dump(mode="json", by_alias=True)))
    return plain


def analysed(case: Plain, restarts: Sequence[Plain]) -> tuple[ExperimentResult, list[RestartRecord]]:
    """Return a case's result, and the restarts that it is of."""
    records = restarts_of(case, restarts)
    result = audited(_config(case), records)
    parts: Plain = {"study": StudyFacts(**case["study"])}
    parts["fallback"] = Fallback(**case["fallback"]) if case["fallback"] else None
    return result.model_copy(update=parts), records


def restarts_of(case: Plain, restarts: Sequence[Plain]) -> list[RestartRecord]:
    """Return the restarts of a case, each with what it ran on."""
    plan, model = _plan(case), _model(case["model"])
    return [_restart(restart, plan, model) for restart in restarts]


def _config(case: Plain) -> ExperimentConfig:
    return ExperimentConfig.model_validate(case["config"])


def _plan(case: Plain) -> ExecutionPlan:
    host = case["inventory"]
    gpus = tuple(
        Gpu(**{name: value for name, value in gpu.items() if name in Gpu.model_fields}) for gpu in host["gpus"]
    )
    links = tuple(Link(**link) for link in host["links"])
    return ExecutionPlan(
        config=_config(case),
        machine=Machine(**case["machine"]),
        inventory=GpuInventory(gpus, host["reason"], tuple(host["unreadable"]), links),
        gpus=tuple(gpu for uuid in case["gpus"] for gpu in gpus if gpu.uuid == uuid),
        launch=_launch(case["launcher"]),
        meter=MeterChoice(**case["meter"]),
        variables=case["variables"],
    )


def _launch(plain: Plain) -> LauncherChoice:
    image = None
    if inside := plain["containers"]:
        gone = ("name", "image_store", "remapped", "selinux")
        engine = {name: value for name, value in inside["engine"].items() if name not in gone}
        described = {name: value for name, value in inside["image"].items() if name != "platform"}
        engine["runtimes"], described["digests"] = tuple(engine["runtimes"]), tuple(described["digests"])
        image = Image(Engine(**engine), **described)
    pin = Pin(**plain["pin"]) if plain["pin"] else None
    return LauncherChoice(plain["name"], plain["reason"], plain["change"], image, pin)


def _model(plain: Plain | None) -> ModelFolder | None:
    if plain is None:
        return None
    return ModelFolder(path=Path("model"), **{name: value for name, value in plain.items() if name != "size_bytes"})


# Conditions that differ between the restarts of a case → the snapshot's field.
CONDITIONS = {"driver": "driver_version", "Python of the coordinator": "coordinator_python"}
POWER_LIMIT = "GPU power limit, W"


def _restart(plain: Plain, plan: ExecutionPlan, model: ModelFolder | None) -> RestartRecord:
    record = RestartRecord(
        restart=plain["restart"],
        started_utc=datetime.fromisoformat(plain["started_utc"]).isoformat(timespec="milliseconds"),
        architecture=model.config if model else None,
        spans=_spans(plain["spans"]),
        passes=tuple(_pass(**measured) for measured in plain["passes"]),
        clock_checks=tuple(ClockCheck(**check) for check in plain["clock_checks"]),
        timeline=_timeline(plain["timeline"]),
        warm_up=tuple(WarmUpSample(**{**sample, "span": _span(sample["span"])}) for sample in plain["warm_up"]),
        failure=Failure(**plain["failure"]) if plain["failure"] else None,
        runner_pids=frozenset(plain["own_pids"]),
        clock=plain["clock"],
    )
    runner = _runner(plain["loaded"]["environment"]) if plain["loaded"] else None
    snapshot = environment(plan, record, runner, model)
    recorded = plain["conditions"]
    known = {field: recorded[name] for name, field in CONDITIONS.items() if recorded.get(name, "unknown") != "unknown"}
    # Where the recording does not say it, the Python that recorded, not the one that tests.
    fields: Plain = {"coordinator_python": "3.11.7"} | known
    if POWER_LIMIT in recorded:
        limit = {"power_limit_w": float(recorded[POWER_LIMIT])} if recorded[POWER_LIMIT][:1].isdigit() else {}
        fields["host_gpus"] = [
            gpu.model_copy(update=limit if gpu.uuid in snapshot.gpu_uuids else {}) for gpu in snapshot.host_gpus
        ]
    return dataclasses.replace(record, environment=snapshot.model_copy(update=fields))


def _runner(plain: Plain) -> RunnerEnvironment:
    dropped = ("driver_version", "visible_gpus")
    visible = [gpu["uuid"] for gpu in plain["visible_gpus"]]
    fields = {name: value for name, value in plain.items() if name not in dropped}
    return RunnerEnvironment(visible_gpu_uuids=visible, **fields)


def _span(plain: Plain) -> Span:
    return Span(plain["name"], plain["start_ns"], plain["end_ns"])


def _spans(plain: Iterable[Plain]) -> tuple[Span, ...]:
    return tuple(map(_span, plain))


def _pass(generated: Plain, declared: Plain, **host: Any) -> PassRecord:
    replicas = (
        ReplicaPass(**{**replica, "gpu_uuids": tuple(replica["gpu_uuids"]), "span": _span(replica["span"])})
        for replica in generated["replicas"]
    )
    return PassRecord(
        span=_span(generated["span"]),
        requests=tuple(RequestRecord(**request) for request in rows(generated["requests"])),
        tokens=TokenSeries(**generated["tokens"]),
        output_tokens=generated["output_tokens"],
        prompt_tokens=generated["prompt_tokens"],
        cached_prompt_tokens=generated["cached_prompt_tokens"],
        prompt_repeats=generated["prompt_repeats"],
        replicas=tuple(replicas),
        declared=DeclaredWork(**declared | {"drawn": tuple(declared["drawn"])}),
        **host,
    )


def _timeline(plain: Plain | None) -> Timeline | None:
    if plain is None:
        return None
    host = plain["host"] and HostTimeline(_series(plain["host"]["energy_j"]), _events(plain["host"]["events"]))
    return Timeline(
        meter=plain["meter"],
        start_ns=plain["start_ns"],
        end_ns=plain["end_ns"],
        gpus={uuid: _gpu(uuid, gpu) for uuid, gpu in plain["gpus"].items()},
        reason=plain["reason"],
        windows=tuple(_window(window) for window in plain["windows"]),
        host=host,
        broke_off=plain["broke_off"],
    )


def _gpu(uuid: str, plain: Plain) -> GpuTimeline:
    return GpuTimeline(
        uuid=uuid,
        energy_source=plain["energy_source"],
        ticks=Ticks(**plain["ticks"]),
        series=_series(plain["series"]),
        processes=tuple(
            ProcessSample(sample["at_ns"], tuple(GpuProcess(**process) for process in sample["processes"]))
            for sample in plain["processes"]
        ),
        events=_events(plain["events"]),
        period_s=plain["period_s"],
        busy_fraction=plain["busy_fraction"],
        lag=LagModel(**plain["lag"]) if plain["lag"] else None,
        card=plain["card"],
    )


def _window(plain: Plain) -> Window:
    return Window(Span(plain["key"], plain["start_ns"], plain["end_ns"]), plain["energy_j"], plain["reason"])


def _series(plain: Mapping[str, Plain]) -> dict[str, Series]:
    return {name: Series(**series) for name, series in plain.items()}


def _events(plain: Iterable[Plain]) -> tuple[MeterEvent, ...]:
    return tuple(MeterEvent(**event) for event in plain)


# ---- End of the adapter: below, nothing knows a class of wattdock's.

HERE = Path(__file__).parent
# Of this machine and version, of the case's own settings, or words that say the same of every result.
LEFT_OUT = re.compile(
    r"(config|study|energy\.(energy_boundary|boundary_statement|net_meaning)"
    r"|environment\.(coordinator_python|wattdock_version)|audit\.checks\.[^.]+\.(name|threshold|source|remedy))(\..+)?"
)
# Least squares and a search, whose last digits depend on the machine's linear algebra.
FITTED = re.compile(r"energy\.(token_costs|phases)\..+|procedure\.(drift|warm_up)\..+|performance\.backlog_slope")
DIGITS, FITTED_DIGITS, ZERO = 1e-12, 1e-6, 1e-12


@dataclass(frozen=True)
class Case:
    """A recorded case: the inputs beside the restarts, and the restarts."""

    facts: Plain
    restarts: tuple[Plain, ...]


def names() -> list[str]:
    """Return the names of all cases."""
    return sorted(file.name.partition("/")[0] for file in HERE.iterdir() if (file / "case.json").exists())


def load_inputs(folder: Path) -> tuple[Plain, tuple[Plain, ...]]:
    """Return a case's facts and restarts."""
    facts = _json(folder, "case")
    return facts, tuple(_load_restart(folder, number) for number in range(facts["restarts"]))


def load(name: str) -> Case:
    """Return a recorded case."""
    facts, restarts = load_inputs(HERE / name)
    return Case(facts, restarts)


def _load_restart(folder: Path, number: int) -> Plain:
    with np.load(folder / f"restart-{number}.npz", allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    plain: Plain = _with_arrays(_json(folder, f"restart-{number}"), arrays)
    return plain


def _json(folder: Path, name: str) -> Plain:
    packed = folder / f"{name}.json.gz"
    text = gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / f"{name}.json").read_bytes()
    plain: Plain = json.loads(text)
    return plain


def _with_arrays(plain: Any, arrays: Mapping[str, Any]) -> Any:
    """Return `plain` with each `{"array": name}` replaced by the array of this name."""
    if isinstance(plain, dict):
        if plain.keys() == {"array"}:
            return arrays[plain["array"]]
        return {key: _with_arrays(value, arrays) for key, value in plain.items()}
    return [_with_arrays(item, arrays) for item in plain] if isinstance(plain, list) else plain


def rows(columns: Plain) -> list[Plain]:
    """Return a table of columns as rows; token ids lie end to end, -1 stands for the length of none at all."""
    ids = columns["output_ids"]
    ends = np.cumsum(np.maximum(ids["lengths"], 0))
    starts = np.concatenate(([0], ends[:-1]))
    output_ids = [
        None if length < 0 else tuple(ids["values"][start:end].tolist())
        for length, start, end in zip(ids["lengths"], starts, ends, strict=True)
    ]
    whole = {**columns, "output_ids": output_ids}
    return [dict(zip(whole, values, strict=True)) for values in zip(*whole.values(), strict=True)]


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Return every leaf of nested dicts and lists by its dotted path; an empty dict or list is a leaf.

    The checks of an audit are found by their names, so that a new check moves none of the others.
    """
    if not isinstance(value, dict | list) or not value:
        return {path: value}
    if path == "audit.checks":
        value = {check["name"]: check for check in value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    flat: dict[str, Any] = {}
    for key, item in items:
        below = flatten(item, f"{path}.{key}" if path else str(key))
        if twice := flat.keys() & below.keys():
            raise ValueError(f"two values have the path {min(twice)}")
        flat |= below
    return flat


def expected_file(name: str) -> Path:
    """Return the file of what a case merges to: a line for each path and its value as JSON."""
    return HERE / "expected" / f"{name}.tsv"


def pinned(result: Plain) -> dict[str, Any]:
    """Return what a case's file holds of a result, by path."""
    flat = flatten(result)
    return {path: flat[path] for path in sorted(flat) if not LEFT_OUT.fullmatch(path)}


def write(name: str, result: Plain) -> None:
    """Write what a case merges to."""
    lines = (f"{path}\t{json.dumps(value)}\n" for path, value in pinned(result).items())
    expected_file(name).write_text("".join(lines), encoding="utf-8")


def same(path: str, old: Any, new: Any) -> bool:
    """Return whether two values at a path are the same, numbers but for what a machine's arithmetic decides."""
    if isinstance(old, float) and isinstance(new, float):
        digits = FITTED_DIGITS if FITTED.fullmatch(path) else DIGITS
        return math.isclose(old, new, rel_tol=digits, abs_tol=ZERO) or (math.isnan(old) and math.isnan(new))
    return type(old) is type(new) and bool(old == new)


def differences(name: str, result: Plain) -> list[str]:
    """Return each difference of a result from the recorded one, as a line per path."""
    lines = expected_file(name).read_text(encoding="utf-8").splitlines()
    old = {path: json.loads(value) for path, _, value in (line.partition("\t") for line in lines)}
    new = json.loads(json.dumps(pinned(result)))
    differing = []
    for path in sorted(old.keys() | new.keys()):
        was, now = (flat.get(path, "absent") for flat in (old, new))
        if not same(path, was, now):
            differing.append(f"{path}: {json.dumps(was)} → {json.dumps(now)}")
    return differing
