"""Stored results as points: one per setting and split, its restarts' figures pooled. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.analysis import ENERGY, POWER, SPEED, restart_values
from wattdock.config import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wattdock.analysis import ExperimentResult
    from wattdock.records import EnvironmentSnapshot

# Settings of backends that say how a model is spread; all others have to be equal on one curve.
# Where prompts come from that are the same for the same workload.
GENERATED = ("bundled", "synthetic")
SPLIT_KEYS = {
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "tp_size", "pp_size"),
    *("device_map", "tp_plan", "data_parallel_scaling"),
}
WEAK = "weak"
# How long and how often it was measured, not what.
NOT_THE_WORK = {"min_duration_s", "min_requests", "seed"}


@dataclass(frozen=True)
class Point:
    """One split in one setting.

    Attributes:
        is_weak: Each replica got the work that one GPU gets, instead of a share of it.
        tokens_per_s, j_per_token, power_w: One value per restart, over all GPUs used; `j_per_token` and `power_w` are
            empty where energy was not measured.
        ttft_p50_s, tpot_p50_s, e2e_p95_s: Mean over the pooled results; None where an engine does not tell.
        load_imbalance: The largest of the pooled results.
        results: Names of the pooled results.
    """

    split: Split
    is_weak: bool
    gpus: int
    tokens_per_s: tuple[float, ...]
    j_per_token: tuple[float, ...]
    power_w: tuple[float, ...]
    ttft_p50_s: float | None
    tpot_p50_s: float | None
    e2e_p95_s: float | None
    load_imbalance: float | None
    results: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Which way the model is spread; points of one kind make a curve."""
        return f"{self.split.kind} ({WEAK})" if self.is_weak else self.split.kind


@dataclass(frozen=True)
class Setting:
    """Everything but the split: points with one are comparable.

    Attributes:
        name: In words.
    """

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class LeftOut:
    """A result that is on no curve, and why."""

    result: str
    reason: str


@dataclass(frozen=True)
class _Usable:
    """A result that can be on a curve: what it ran on, and its values per restart by quantity."""

    name: str
    result: ExperimentResult
    seen: EnvironmentSnapshot
    restarts: Mapping[str, Sequence[float]]


def settings(results: Mapping[str, ExperimentResult]) -> tuple[list[Setting], list[LeftOut]]:
    """Sort results into settings and pool those of one split.

    Args:
        results: By name.
    """
    read = [_read(name, one) for name, one in results.items()]
    usable = sorted(
        ((_key(one), _split_key(one), one) for one in read if isinstance(one, _Usable)),
        key=lambda entry: (*entry[:2], entry[2].name),
    )
    found = []
    for _, of_setting in groupby(usable, key=lambda entry: entry[0]):
        members = list(of_setting)
        points = [_point([one for *_, one in same]) for _, same in groupby(members, key=lambda entry: entry[1])]
        ordered = tuple(sorted(points, key=lambda point: (point.gpus, point.split.label)))
        found.append(Setting(_name(members[0][2]), ordered))
    return found, [one for one in read if isinstance(one, LeftOut)]


def _read(name: str, result: ExperimentResult) -> _Usable | LeftOut:
    if result.status != "ok":
        return LeftOut(name, f"status {result.status}" + (f": {result.error.message}" if result.error else ""))
    if result.environment is None or result.performance is None or result.energy is None:
        return LeftOut(name, "it does not say what ran, or nothing was measured")
    if not result.environment.gpu_count:
        return LeftOut(name, "no GPU was used")
    if not result.energy.passes:
        return LeftOut(name, "no pass was measured")
    restarts = restart_values(result)
    if SPEED not in restarts or min(restarts.get(ENERGY, [1.0])) <= 0:
        return LeftOut(name, "a restart's tokens or joules are 0 or less, and of such values there is no ratio")
    return _Usable(name, result, result.environment, restarts)


def _key(one: _Usable) -> str:
    """What has to be equal for two results to be on one curve."""
    seen, config = one.seen, one.result.config
    section = {key: value for key, value in config.get(seen.backend, {}).items() if key not in SPLIT_KEYS}
    workload = {key: value for key, value in config["workload"].items() if key not in NOT_THE_WORK}
    what = [seen.model.name, seen.model.revision, seen.model.weights, seen.backend, seen.framework_version]
    # A file under the same path may have changed; other prompts follow from the workload.
    prompts = None if seen.dataset in GENERATED else seen.dataset_sha256
    what += [json.dumps(seen.variables, sort_keys=True), prompts]
    gpus = [sorted(set(seen.gpu_names)), sorted({str(gpu.power_limit_w) for gpu in seen.used_gpus})]
    return json.dumps([what, gpus, section, workload], sort_keys=True, default=str)


def _split_key(one: _Usable) -> tuple[int, str, bool]:
    return one.seen.gpu_count, Split.of(one.seen.parallelism).label, _is_weak(one)


def _is_weak(one: _Usable) -> bool:
    section = one.result.config.get(one.seen.backend, {})
    return section.get("data_parallel_scaling") == WEAK and Split.of(one.seen.parallelism).replicas > 1


def _name(one: _Usable) -> str:
    seen, work = one.seen, one.result.config["workload"]
    prompts = work.get("prompts") or {}
    lengths = f"{prompts['input_tokens']} in, " if seen.dataset == "synthetic" and "input_tokens" in prompts else ""
    lengths += f"{work['max_output_tokens']} out"
    gpus = " + ".join(sorted(set(seen.gpu_names)))
    dtype = seen.engine_args.get("dtype")
    engine = f"{seen.backend} {seen.framework_version or ''}".strip()
    parts = [seen.model.name, engine, *([str(dtype)] if dtype else []), gpus, f"batch {work['batch_size']}", lengths]
    return ", ".join(parts)


def _point(same: Sequence[_Usable]) -> Point:
    seen = same[0].seen
    measured = all(ENERGY in one.restarts for one in same)
    values = {name: tuple(one for own in same for one in own.restarts.get(name, ())) for name in (SPEED, ENERGY, POWER)}
    done = [one.result.performance for one in same if one.result.performance]
    shared = [one.result.multi_gpu.load_imbalance for one in same if one.result.multi_gpu]
    return Point(
        split=Split.of(seen.parallelism),
        is_weak=_is_weak(same[0]),
        gpus=seen.gpu_count,
        tokens_per_s=values[SPEED],
        j_per_token=values[ENERGY] if measured else (),
        power_w=values[POWER] if measured else (),
        ttft_p50_s=_mean([one.ttft and one.ttft.p50_s for one in done]),
        tpot_p50_s=_mean([one.tpot and one.tpot.p50_s for one in done]),
        e2e_p95_s=_mean([one.e2e and one.e2e.p95_s for one in done]),
        load_imbalance=max(shared, default=None),
        results=tuple(one.name for one in same),
    )


def _mean(values: Sequence[Any]) -> float | None:
    return None if not values or None in values else float(np.mean(values))
