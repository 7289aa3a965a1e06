"""What holds of one restart only does not hold: each check looks at every restart with passes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fake_nvml import constant
from make import audit_world
from make.audit_world import AS_EVER, OTHER, POWER, RUNNER, USED, World, checks, result_of
from seams.analysis import DIFFERENT_GPUS
from seams.metering import Series, Ticks

from wattdock.metering import MeterEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from wattdock.analysis import ExperimentResult
    from wattdock.metering import GpuTimeline
    from wattdock.records import RestartRecord

    Change = Callable[[RestartRecord], RestartRecord]

ALL = frozenset({0, 1, 2})
# Somebody's context, 41 W, in the whole run.
STRAY_W = (constant(80, 28), constant(121))


def changed(library: Path, change: Change, world: World, monkeypatch: pytest.MonkeyPatch) -> ExperimentResult:
    """Return what merging gives where each restart was changed."""
    sound = audit_world._restart
    monkeypatch.setattr(audit_world, "_restart", lambda *args: change(sound(*args)))
    return result_of(world, library)


def on_gpu(change: Callable[[GpuTimeline], GpuTimeline], restarts: frozenset[int] = ALL) -> Change:
    """Return what makes restarts whose used GPU was recorded otherwise."""

    def changed_record(record: RestartRecord) -> RestartRecord:
        if record.timeline is None or record.restart not in restarts:
            return record
        gpus = {**record.gpus, USED: change(record.gpus[USED])}
        return dataclasses.replace(record, timeline=dataclasses.replace(record.timeline, gpus=gpus))

    return changed_record


def without_spans(names: set[str], restarts: frozenset[int]) -> Change:
    def changed_record(record: RestartRecord) -> RestartRecord:
        spans = tuple(span for span in record.spans if span.name not in names or record.restart not in restarts)
        return dataclasses.replace(record, spans=spans)

    return changed_record


def samples(gpu: GpuTimeline, name: str, keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]]) -> GpuTimeline:
    """Return a GPU with only those samples, of the series that begin with a name, whose instants are to be kept."""
    series = {key: values for key, values in gpu.series.items() if not key.startswith(name)}
    for key, values in gpu.series.items():
        if key.startswith(name):
            inside = keep(values.at_ns)
            series[key] = Series(values.at_ns[inside], values.value[inside])
    return dataclasses.replace(gpu, series=series)


def cut_series(name: str, until_s: float, restarts: frozenset[int] = ALL) -> Change:
    """Return what makes restarts in which the series that begin with a name end early."""
    return on_gpu(lambda gpu: samples(gpu, name, lambda at_ns: at_ns < audit_world._ns(until_s)), restarts)


def scaled_power(record: RestartRecord) -> RestartRecord:
    """Return the first restart with power 8 % too high, the last one with power 8 % too low."""
    factor = (1.08, 1.0, 0.92)[record.restart]

    def change(gpu: GpuTimeline) -> GpuTimeline:
        power = gpu.series["power_sample_w"]
        return dataclasses.replace(
            gpu, series={**gpu.series, "power_sample_w": Series(power.at_ns, power.value * factor)}
        )

    return on_gpu(change)(record)


def lists_end_early(gpu: GpuTimeline) -> GpuTimeline:
    """Return a GPU whose process lists show the runner until the middle of its run."""
    return dataclasses.replace(gpu, processes=tuple(x for x in gpu.processes if x.at_ns < audit_world._ns(61)))


def nobody_listed(gpu: GpuTimeline) -> GpuTimeline:
    return dataclasses.replace(gpu, processes=tuple(dataclasses.replace(x, processes=()) for x in gpu.processes))


def broken_off(gpu: GpuTimeline) -> GpuTimeline:
    return dataclasses.replace(gpu, events=(*gpu.events, MeterEvent(1, "broke_off")))


def unmetered(record: RestartRecord) -> RestartRecord:
    """Return a restart in which the meter never saw the GPU used."""
    assert record.timeline is not None
    gpus = {uuid: gpu for uuid, gpu in record.gpus.items() if uuid != USED}
    return dataclasses.replace(record, timeline=dataclasses.replace(record.timeline, gpus=gpus))


def stalled(gpu: GpuTimeline) -> GpuTimeline:
    """Return a GPU whose reader stood still for 1.5 s, within the window."""
    from_ns, until_ns = audit_world._ns(80.9), audit_world._ns(82.4)
    ticks = gpu.ticks
    read = (ticks.after_end_ns < from_ns) | (ticks.after_start_ns > until_ns)
    columns = {name: column[read] for name, column in vars(ticks).items()}
    late = int(np.searchsorted(columns["after_start_ns"], until_ns))
    # The first call after the stall found what had changed since the last call before it.
    columns["before_start_ns"][late] = columns["before_end_ns"][late] = columns["after_end_ns"][late - 1]
    gpu = samples(gpu, "", lambda at_ns: (at_ns < from_ns) | (at_ns > until_ns))
    return dataclasses.replace(gpu, ticks=Ticks(**columns))


LATER, LAST = frozenset({1, 2}), frozenset({2})
STRAY, METER, POWERS, THROTTLING = "other GPUs", "meter", "two readings", "throttling"
ALONE, MEMORY, SETTINGS = "processes on the GPUs", "memory of others", "GPU settings"
PLANTED: list[tuple[Change, dict[str, tuple[str, str]]]] = [
    (
        without_spans({"idle-empty"}, LATER),
        {MEMORY: ("unknown", "in 2 restarts and GPUs"), STRAY: ("unknown", f"{OTHER} unknown")},
    ),
    (on_gpu(lambda gpu: dataclasses.replace(gpu, processes=()), LATER), {ALONE: ("unknown", "0 ")}),
    (on_gpu(lists_end_early), {ALONE: ("unknown", "near 1 begins or ends")}),
    (cut_series("memory_used", 110), {MEMORY: ("unknown", "unknown in the passes")}),
    (
        on_gpu(nobody_listed, LAST),
        {ALONE: ("unknown", "show no process of the runner"), MEMORY: ("unknown", "unknown in the passes")},
    ),
    (cut_series("violation_thermal", 0), {THROTTLING: ("unknown", "thermal")}),
    (cut_series("violation_", 110), {THROTTLING: ("unknown", "thermal")}),
    (cut_series("clocks_limited", 110, LAST), {SETTINGS: ("unknown", "not read throughout")}),
    (scaled_power, {POWERS: ("fail", "8.0")}),
    (cut_series("power_sample_w", 0, LATER), {POWERS: ("unknown", "")}),
    # Three quarters of the run are enough.
    (cut_series("power_sample_w", 95), {POWERS: ("unknown", "")}),
    (
        lambda record: unmetered(record) if record.restart == 2 else record,
        {METER: ("fail", "not measured"), THROTTLING: ("unknown", "thermal"), POWERS: ("unknown", "")},
    ),
    (unmetered, {METER: ("fail", USED)}),
    (on_gpu(broken_off), {METER: ("fail", "broke_off")}),
]


@pytest.mark.parametrize(("change", "expected"), PLANTED)
def test_what_is_not_known_of_every_restart_and_throughout_is_not_passed(
    change: Change, expected: dict[str, tuple[str, str]], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault alone, with what is missing named in the figure."""
    by_name = checks(changed(library, change, World(), monkeypatch))
    for name, (status, value) in expected.items():
        assert (by_name[name].status, value in by_name[name].figure) == (status, True), by_name[name]


def test_a_host_that_stalls_within_a_pass_costs_a_sound_result_nothing(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter went on; who looks for stationary power looks beside the stall."""
    result = changed(library, on_gpu(stalled), World(), monkeypatch)
    assert result.audit is not None
    assert result.audit.reasons == []
    assert result.audit.publishable


def test_a_stray_context_in_one_restart_is_no_third_of_one(library: Path) -> None:
    """41 W in the run of one restart of three were 14 W in their mean."""
    world = World(recordings=(({}, {"profile": STRAY_W}), AS_EVER, AS_EVER))
    check = checks(result_of(world, library))[STRAY]
    assert (check.status, check.figure) == ("fail", f"{OTHER} +41 W")


def test_a_gpu_that_was_full_before_is_wrong_though_another_s_memory_is_unknown(library: Path) -> None:
    """Two GPUs, of which the second tells no memory; the first held 2 GB before the runner."""
    both, full = {"profile": POWER, "processes": (RUNNER,)}, {"memory_used_bytes": 2_000_000_000}
    for gpu, status in (({}, "unknown"), (full, "fail")):
        world = World(gpu=gpu, other=both | {"unsupported": "memory"}, used=((USED, OTHER),) * 3)
        check = checks(result_of(world, library))[MEMORY]
        assert (check.status, check.figure.startswith("2.00 GB in use before")) == (status, bool(gpu)), check.figure
        assert check.figure.endswith("; not known of every GPU")


def test_a_gpu_without_a_temperature_may_be_published_with_a_wider_interval(library: Path) -> None:
    """It may be 8 °C away from its settled state, at 0.06 ± 0.03 % per °C; the room's 1.5 °C are beside that."""
    result = result_of(World(gpu={"unsupported": "temperature"}), library)
    assert result.audit is not None
    assert result.audit.publishable
    assert result.budget is not None
    assert result.budget.standard_uncertainty == pytest.approx(
        np.sqrt((0.0006**2 + 0.0003**2) * (8**2 + 1.5**2) + 0.0005**2), rel=0.02
    )


def test_restarts_on_different_gpus_have_no_sum(library: Path) -> None:
    """The last runner's GPUs are not those of the others; nothing is made of joules of the wrong ones."""

    other = {"profile": POWER, "processes": (RUNNER,)}
    result = result_of(World(other=other, used=((USED, OTHER), (USED, OTHER), (USED,))), library)
    assert result.energy is not None
    energy = result.energy
    assert (energy.total_j, energy.reason, energy.net_j) == (None, DIFFERENT_GPUS, None)
    assert energy.measured_per_output_token_j is None
    assert {measured.total_j for measured in energy.passes} == {None}
    assert energy.windows is not None
    assert {window.total_j for window in energy.windows.passes} == {None}
    assert (result.budget, checks(result)[METER].status) == (None, "fail")
