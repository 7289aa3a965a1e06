"""Stored results as points: one per setting and split, its restarts' figures pooled. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from wattdock.estimate.against import split_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock.config.placement import Split
    from wattdock.results.energy import PassEnergy
    from wattdock.results.result import ExperimentResult

# Settings of backends that say how a model is spread; all others have to be equal on one curve.
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
        model: Of it, for what compares settings of one model.
    """

    name: str
    model: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class LeftOut:
    """A result that is on no curve, and why."""

    result: str
    reason: str


def settings(results: Mapping[str, ExperimentResult]) -> tuple[list[Setting], list[LeftOut]]:
    """Sort results into settings and pool those of one split.

    Args:
        results: By name.
    """
    left_out = [LeftOut(name, reason) for name, one in results.items() if (reason := _why_not(one))]
    unfit = {one.result for one in left_out}
    usable = sorted(
        ((_key(one), _split_key(one), name, one) for name, one in results.items() if name not in unfit),
        key=lambda entry: entry[:3],
    )
    found = []
    for _, of_setting in groupby(usable, key=lambda entry: entry[0]):
        members = list(of_setting)
        first = members[0][3]
        points = [
            _point([(name, one) for *_, name, one in same]) for _, same in groupby(members, key=lambda entry: entry[1])
        ]
        ordered = tuple(sorted(points, key=lambda point: (point.gpus, point.split.label)))
        found.append(Setting(_name(first), _model(first), ordered))
    return found, left_out


def _why_not(result: ExperimentResult) -> str | None:
    if result.status != "ok":
        return f"status {result.status}" + (f": {result.error.message}" if result.error else "")
    if result.environment is None or result.performance is None or result.energy is None:
        return "it does not say what ran, or nothing was measured"
    if not result.environment.gpu_count:
        return "no GPU was used"
    if not result.energy.passes:
        return "no pass was measured"
    if not all(map(_is_above_0, _by_restart(result.energy.passes))):
        return "a restart's tokens or joules are 0 or less, and of such values there is no ratio"
    return None


def _is_above_0(restart: Sequence[PassEnergy]) -> bool:
    is_measured = all(one.total_j is not None for one in restart)
    return sum(map(_tokens, restart)) > 0 and (not is_measured or sum(map(_joules, restart)) > 0)


def _key(result: ExperimentResult) -> str:
    """What has to be equal for two results to be on one curve."""
    seen, config = result.environment, result.config
    assert seen is not None
    section = {key: value for key, value in config.get(seen.backend, {}).items() if key not in SPLIT_KEYS}
    workload = {key: value for key, value in config["workload"].items() if key not in NOT_THE_WORK}
    what = [_model(result), seen.model.revision, seen.model.weights, seen.backend, seen.framework_version]
    return json.dumps([what, sorted(set(seen.gpu_names)), section, workload], sort_keys=True, default=str)


def _split_key(result: ExperimentResult) -> tuple[int, str, bool]:
    assert result.environment is not None
    return result.environment.gpu_count, split_of(result.environment.parallelism).label, _is_weak(result)


def _is_weak(result: ExperimentResult) -> bool:
    assert result.environment is not None
    section = result.config.get(result.environment.backend, {})
    return section.get("data_parallel_scaling") == WEAK and split_of(result.environment.parallelism).replicas > 1


def _model(result: ExperimentResult) -> str:
    assert result.environment is not None
    return result.environment.model.name


def _name(result: ExperimentResult) -> str:
    seen, work = result.environment, result.config["workload"]
    assert seen is not None
    prompts = work.get("prompts") or {}
    lengths = f"{prompts['input_tokens']} in, " if seen.dataset == "synthetic" and "input_tokens" in prompts else ""
    lengths += f"{work['max_output_tokens']} out"
    gpus = " + ".join(sorted(set(seen.gpu_names)))
    dtype = seen.engine_args.get("dtype")
    engine = f"{seen.backend} {seen.framework_version or ''}".strip()
    parts = [_model(result), engine, *([str(dtype)] if dtype else []), gpus, f"batch {work['batch_size']}", lengths]
    return ", ".join(parts)


def _point(same: Sequence[tuple[str, ExperimentResult]]) -> Point:
    results = [one for _, one in same]
    restarts = [passes for one in results if one.energy for passes in _by_restart(one.energy.passes)]
    measured = all(one.total_j is not None for passes in restarts for one in passes)
    first = results[0].environment
    assert first is not None
    shared = [one.multi_gpu.load_imbalance for one in results if one.multi_gpu]
    return Point(
        split=split_of(first.parallelism),
        is_weak=_is_weak(results[0]),
        gpus=first.gpu_count,
        tokens_per_s=tuple(_ratio(passes, _tokens, _seconds) for passes in restarts),
        j_per_token=tuple(_ratio(passes, _joules, _tokens) for passes in restarts) if measured else (),
        power_w=tuple(_ratio(passes, _joules, _seconds) for passes in restarts) if measured else (),
        ttft_p50_s=_mean([one.performance.ttft and one.performance.ttft.p50_s for one in results if one.performance]),
        tpot_p50_s=_mean([one.performance.tpot and one.performance.tpot.p50_s for one in results if one.performance]),
        e2e_p95_s=_mean([one.performance.e2e and one.performance.e2e.p95_s for one in results if one.performance]),
        load_imbalance=max(shared, default=None),
        results=tuple(name for name, _ in same),
    )


def _by_restart(passes: Sequence[PassEnergy]) -> list[list[PassEnergy]]:
    numbers = sorted({one.restart for one in passes})
    return [[one for one in passes if one.restart == number] for number in numbers]


def _ratio(
    passes: Sequence[PassEnergy], over: Callable[[PassEnergy], float], under: Callable[[PassEnergy], float]
) -> float:
    """Sum over sum, so that long passes weigh more."""
    return sum(map(over, passes)) / sum(map(under, passes))


def _joules(one: PassEnergy) -> float:
    return one.total_j or 0.0


def _tokens(one: PassEnergy) -> float:
    return float(one.output_tokens)


def _seconds(one: PassEnergy) -> float:
    return one.duration_s


def _mean(values: Sequence[Any]) -> float | None:
    return None if not values or None in values else float(np.mean(values))
