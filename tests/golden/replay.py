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
from pydantic import TypeAdapter
from seams.execution import environment
from seams.launch import Engine, Image, Pin

from wattdock.analysis import ExperimentResult, StudyFacts
from wattdock.audit import audited
from wattdock.config import ExperimentConfig
from wattdock.host import Gpu, GpuInventory, Link, Machine
from wattdock.inputs import ModelFolder
from wattdock.launch import LauncherChoice
from wattdock.metering import MeterChoice
from wattdock.planning import ExecutionPlan
from wattdock.records import PassRecord, RestartRecord, RunnerEnvironment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    return result.model_copy(update={"study": StudyFacts(**case["study"])}), records


def restarts_of(case: Plain, restarts: Sequence[Plain]) -> list[RestartRecord]:
    """Return the restarts of a case, each with what it ran on."""
    plan, model = _plan(case), _model(case["model"])
    return [_restart(restart, plan, model) for restart in restarts]


def _config(case: Plain) -> ExperimentConfig:
    config = dict(case["config"])
    if config["warmup"]["profile"] == "quick":
        config["warmup"] = {"profile": "quick", "passes": config["warmup"]["passes"]}
    else:
        # It warmed up in passes of their own, before a lead-in of no length; the minimum was that of whole passes.
        config["warmup"] = {"profile": "lead-in", "lead_in_s": 0, "lead_in_lifetimes": 0}
        config["workload"] = config["workload"] | {"min_duration_s": None}
    config["idle"] = {"duration_s": config["idle"]["duration_s"]}
    return ExperimentConfig.model_validate(config)


_RECORD = TypeAdapter(RestartRecord)


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
        gone = ("name", "image_store", "remapped", "runtimes", "selinux")
        engine = {name: value for name, value in inside["engine"].items() if name not in gone}
        described = {name: value for name, value in inside["image"].items() if name not in ("platform", "variant")}
        described["digests"] = tuple(described["digests"])
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
# Spans of recorded restarts that are called otherwise today.
IDLE = {"idle-loaded-before": "idle-loaded"}
# Keys of recorded restarts that no record has any more: of spans.
GONE = ("drained",)


def _restart(plain: Plain, plan: ExecutionPlan, model: ModelFolder | None) -> RestartRecord:
    record = _RECORD.validate_python(
        {
            "restart": plain["restart"],
            "started_utc": datetime.fromisoformat(plain["started_utc"]).isoformat(timespec="milliseconds"),
            "architecture": model.config if model else None,
            "passes": [_pass(**run_pass) for run_pass in plain["passes"]],
            "timeline": plain["timeline"] and _timeline(plain["timeline"]),
            "runner_pids": plain["own_pids"],
            "spans": [span | {"name": IDLE.get(span["name"], span["name"])} for span in plain["spans"]],
            **{name: plain[name] for name in ("clock_checks", "failure", "clock")},
        }
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


def _pass(generated: Plain, declared: Plain, **host: Any) -> Plain:
    known = {name: value for name, value in generated.items() if name in PassRecord.__dataclass_fields__}
    return known | {"requests": rows(generated["requests"]), "declared": declared} | host


def _timeline(plain: Plain) -> Plain:
    windows = [
        {
            "span": {"name": window["key"], "start_ns": window["start_ns"], "end_ns": window["end_ns"]},
            "energy_j": window["energy_j"],
            "reason": window["reason"],
        }
        for window in plain["windows"]
    ]
    return {**plain, "gpus": {uuid: {"uuid": uuid, **gpu} for uuid, gpu in plain["gpus"].items()}, "windows": windows}


# ---- End of the adapter: below, nothing knows a class of wattdock's.

HERE = Path(__file__).parent
# Of this machine and version, of the case's own settings, or words that say the same of every result.
LEFT_OUT = re.compile(
    r"(config|study|energy\.(energy_boundary|boundary_statement|net_meaning)"
    r"|environment\.(coordinator_python|wattdock_version)|audit\.checks\.[^.]+\.(name|threshold|source|remedy))(\..+)?"
)
# Least squares and a search, whose last digits depend on the machine's linear algebra.
FITTED = re.compile(r"energy\.phases\..+|budget\..+|performance\.backlog_slope")
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
    """Return `plain` with each `{"array": name}` replaced by the array of this name, and without keys that are gone."""
    if isinstance(plain, dict):
        if plain.keys() == {"array"}:
            return arrays[plain["array"]]
        return {key: _with_arrays(value, arrays) for key, value in plain.items() if key not in GONE}
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
