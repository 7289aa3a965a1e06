"""Lost GPUs, frozen counters and broken meters: what fails, and what is kept."""

from __future__ import annotations

import os
import signal
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
from make.machine import VirtualMachine, experiment, study
from make.outcomes import begins, known, passes, send, statuses
from seams.metering import Ticks
from seams.study import (
    PassStarted,
    ResultStored,
)

from wattdock.clock import NS_PER_S
from wattdock.errors import Cause, ExitCode
from wattdock.metering import GpuTimeline, MeterChoice, MeterEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from seams.study import Event

    from wattdock.metering import Timeline

GPU, OTHER = "GPU-1", "GPU-2"


@pytest.mark.parametrize("breaks", [GPU, OTHER])
def test_a_meter_that_breaks_off_on_one_gpu_costs_the_energy_of_that_gpu_only(tmp_path: Path, breaks: str) -> None:
    """A used GPU without energy fails the result with its reason and keeps the speed; a bystander's is only unknown."""

    def broken(timeline: Timeline) -> Timeline:
        event = MeterEvent(timeline.end_ns, "broke_off")
        gpu = replace(timeline.gpus[breaks], ticks=Ticks.from_rows(), events=(event,))
        return replace(timeline, gpus={**timeline.gpus, breaks: gpu})

    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0}, at_meter_end=broken)
    result = machine.run(study(experiment("a")), gpus=[GPU]).results[0].result
    energy, performance, error = result.energy, result.performance, result.error
    assert energy is not None
    assert performance is not None
    assert performance.output_tokens > 0
    if breaks == OTHER:
        assert (result.status, energy.bystander_j) == ("ok", {OTHER: None})
        assert energy.total_j == pytest.approx(300 * performance.duration_s, rel=0.02)
    else:
        assert error is not None
        assert (error.kind, error.stage, error.exit_code) == ("MeterError", "meter", ExitCode.METER)
        assert "broke off" in error.message
        assert (energy.total_j, GPU in str(energy.reason)) == (None, True)


# What the meter says of a GPU that is lost, and of one whose counter freezes.
LOST = MeterEvent(0, "gpu_lost", said="GPU is lost")


FROZEN = MeterEvent(0, "counter_frozen", values={"stood_s": 9.0, "mean_w": 300.0})


def spoiled(uuid: str, event: MeterEvent, from_s: float) -> Callable[[Timeline], Timeline]:
    """Return what a timeline becomes where one GPU's counter no longer changes from an instant on, and why."""
    from_ns = round(from_s * NS_PER_S)

    def change(timeline: Timeline) -> Timeline:
        gpu = timeline.gpus[uuid]
        if timeline.end_ns < from_ns:
            return timeline
        end_ns = timeline.end_ns if event == FROZEN else None
        before = gpu.ticks.after_end_ns < from_ns
        ticks = Ticks(**{column.name: getattr(gpu.ticks, column.name)[before] for column in fields(Ticks)})
        gpu = replace(gpu, ticks=ticks, events=(replace(event, at_ns=from_ns, end_ns=end_ns),))
        return replace(timeline, gpus={**timeline.gpus, uuid: gpu})

    return change


@pytest.mark.parametrize("event", [LOST, FROZEN])
@pytest.mark.parametrize(("on_failure", "later"), [("continue", [("b", "failed")]), ("stop", [])])
def test_a_gpu_lost_or_a_counter_frozen_within_a_pass_fails_the_experiment_and_keeps_what_was_measured(
    machine: VirtualMachine, event: MeterEvent, on_failure: Any, later: list[tuple[str, str]]
) -> None:
    """Exit code 6, the loss as the first reason everywhere, the energy of earlier passes, no pass without energy."""

    def note(happened: Event) -> None:
        if isinstance(happened, PassStarted) and happened.stage == "pass 2/3":
            machine.as_read = spoiled(GPU, event, machine.clock.now_ns() / NS_PER_S + 0.5)

    settings = {"repeats": {"passes": 3}, "on_failure": on_failure}
    both = (experiment(name, **settings, fake={"step_s": step_s}) for name, step_s in (("a", 0.1), ("b", 0.2)))
    run = machine.run(study(*both, order="written"), on=note)
    assert statuses(run.results) == [("a", "failed"), *later]
    result = run.results[0].result
    error, energy, performance, audit = result.error, result.energy, result.performance, result.audit
    assert error is not None
    assert (error.kind, error.stage, error.exit_code) == ("MeterError", "pass 2/3", ExitCode.METER)
    assert error.message == f"{GPU}: {event.message}; `wattdock doctor` says what to do"
    assert energy is not None
    assert energy.reason == f"{GPU}: {event.message}"
    first, second = energy.passes
    assert first.total_j == pytest.approx(300 * first.duration_s, rel=0.02)
    assert (second.total_j, second.reason) == (None, energy.reason)
    assert performance is not None
    assert performance.output_tokens == first.output_tokens + second.output_tokens
    assert audit is not None
    [reason] = audit.reasons
    assert (reason.question, reason.name, reason.found) == ("wrong", "completion", error.message)
    assert audit.failure("meter")


def test_a_counter_that_is_found_frozen_only_after_the_last_pass_fails_the_experiment_too(
    machine: VirtualMachine,
) -> None:
    """It takes seconds until a standstill can be called so."""
    machine.at_meter_end = lambda timeline: spoiled(GPU, FROZEN, timeline.end_ns / NS_PER_S - 3.5)(timeline)
    error = known(machine.run(study(experiment("a"))).results[0].result.error)
    assert (error.stage, error.exit_code, FROZEN.message in error.message) == ("meter", ExitCode.METER, True)


def test_a_gpu_that_is_lost_when_nothing_is_measured_any_more_costs_nothing(machine: VirtualMachine) -> None:
    """Every pass has its energy; the loss is told."""
    machine.at_meter_end = lambda timeline: spoiled(GPU, LOST, timeline.end_ns / NS_PER_S - 0.5)(timeline)
    assert statuses(machine.run(study(experiment("a"))).results) == [("a", "ok")]
    assert f"{GPU}: {LOST.message}" in machine.notes()


def without_source(timeline: Timeline) -> Timeline:
    """Return what a timeline becomes where the driver reports no energy."""
    return replace(timeline, gpus={GPU: replace(timeline.gpus[GPU], energy_source=None, ticks=Ticks.from_rows())})


def reset_in(from_s: float) -> Callable[[Timeline], Timeline]:
    """Return what a timeline becomes where the counter begins anew at an instant."""

    def change(timeline: Timeline) -> Timeline:
        ticks = timeline.gpus[GPU].ticks
        energy_mj = np.where(ticks.after_end_ns < from_s * NS_PER_S, ticks.energy_mj + 10**9, ticks.energy_mj)
        return replace(timeline, gpus={GPU: replace(timeline.gpus[GPU], ticks=replace(ticks, energy_mj=energy_mj))})

    return change


@pytest.mark.parametrize(
    ("cause", "told", "unknown"),
    [
        ("reset", "the energy counter was reset", 1),
        ("0 W", "counter stood at 0 W", 3),
        ("no source", "no energy counter", 3),
    ],
)
def test_a_measured_pass_without_energy_fails_its_experiment_with_the_meters_code_and_is_kept(
    machine: VirtualMachine, cause: str, told: str, unknown: int
) -> None:
    """Exit code 6 as docs/exit-codes.md says; all passes are in the row, with the energy that they have."""
    if cause == "0 W":
        machine.power = {GPU: lambda _: 0.0}
    machine.as_read = without_source if cause == "no source" else machine.as_read

    def note(happened: Event) -> None:
        if cause == "reset" and isinstance(happened, PassStarted) and happened.stage == "pass 2/3":
            machine.as_read = reset_in(machine.clock.now_ns() / NS_PER_S + 0.5)

    idle = {"duration_s": 0.0}
    [stored] = machine.run(study(experiment("a", repeats={"passes": 3}, idle=idle)), on=note).results
    error, energy, performance = stored.result.error, stored.result.energy, stored.result.performance
    assert error is not None
    assert (stored.result.status, error.kind, error.exit_code) == ("failed", "MeterError", ExitCode.METER)
    assert (GPU in error.message, told in error.message, "wattdock doctor" in error.message) == (True, True, True)
    assert energy is not None
    assert [measured.total_j for measured in energy.passes].count(None) == unknown
    assert performance is not None
    assert performance.output_tokens > 0


def test_an_interruption_does_not_hide_that_a_pass_has_no_energy(machine: VirtualMachine) -> None:
    """A resumption would measure the passes that are left and pool them with one that nobody metered."""
    machine.as_read = without_source
    planned = study(experiment("a", repeats={"passes": 3}, idle={"duration_s": 0.0}))
    with pytest.raises(KeyboardInterrupt):
        machine.run(planned, on=send(signal.SIGTERM, begins("pass 2/3")))
    assert statuses(machine.last.results) == [("a", "failed")]


def test_without_gpu_metering_by_choice_no_energy_is_missing(machine: VirtualMachine) -> None:
    """`meter: none` and `meter: rapl` name their reason; the GPU runs all the same."""
    plans, machine.as_read = machine.plans, without_source
    chosen = MeterChoice("none", "asked for", "meter: none was asked for")
    with patch.object(
        VirtualMachine, "plans", lambda _, *planned: [replace(plan, meter=chosen) for plan in plans(*planned)]
    ):
        [stored] = machine.run(study(experiment("a"))).results
    assert (stored.result.status, stored.result.error) == ("ok", None)


def test_a_lost_gpu_comes_before_the_death_of_its_runner(machine: VirtualMachine) -> None:
    """The runner died of it."""
    machine.as_read = spoiled(GPU, LOST, machine.clock.now_ns() / NS_PER_S + 5)
    error = known(machine.run(study(experiment("a", fake={"pass_fault": "die"}))).results[0].result.error)
    first, _, second = error.message.partition("; then: ")
    assert (error.kind, error.exit_code, error.stage) == ("MeterError", ExitCode.METER, "warm-up 1/1")
    assert (first.startswith(f"{GPU}: {LOST.message}"), "died" in second) == (True, True)


def test_a_bystander_that_is_lost_is_told_and_fails_nothing(tmp_path: Path) -> None:
    """Its energy alone is unknown."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    machine.as_read = spoiled(OTHER, LOST, machine.clock.now_ns() / NS_PER_S + 5)
    [stored] = machine.run(study(experiment("a")), gpus=[GPU]).results
    assert stored.result.status == "ok"
    assert known(stored.result.energy).bystander_j == {OTHER: None}
    assert f"{OTHER}: {LOST.message}" in machine.notes()


def test_no_runner_is_started_on_a_gpu_that_the_meter_does_not_find(tmp_path: Path) -> None:
    """Lost between two experiments of a study; what the meter says of it, without its UUID, is the reason."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})

    def without(timeline: Timeline) -> Timeline:
        told = replace(timeline.gpus[OTHER], events=(MeterEvent(0, "read_error", reading="power_w", said="busy"),))
        unread = GpuTimeline(
            "index-0", None, Ticks.from_rows(), events=(MeterEvent(0, "gpu_lost", reading="GPU 0", said="GPU is lost"),)
        )
        return replace(timeline, gpus={OTHER: told, "index-0": unread})

    def lose(happened: Event) -> None:
        if isinstance(happened, ResultStored):
            machine.power, machine.as_read = {OTHER: lambda _: 100.0}, without

    both = study(experiment("a"), experiment("b", fake={"step_s": 0.2}), order="written")
    run = machine.run(both, gpus=[GPU], on=lose)
    assert (statuses(run.results), machine.launches) == ([("a", "ok"), ("b", "failed")], 1)
    error = known(run.results[1].result.error)
    message = f"GPU 0: GPU is lost; not metered: {GPU}; `wattdock doctor` says what to do"
    assert (error.exit_code, error.message) == (ExitCode.METER, message)


def test_a_meter_that_cannot_be_stopped_does_not_hide_what_went_wrong_first(machine: VirtualMachine) -> None:
    """The first error is the result's and decides the exit code; the meter's is in the record."""

    def broken(_: Timeline) -> Timeline:
        raise RuntimeError("put in by a test")

    machine.at_meter_end = broken
    [stored] = machine.run(study(experiment("a", fake={"pass_fault": "die"}))).results
    error, [record] = stored.result.error, stored.restarts()
    assert error is not None
    assert record.timeline is not None
    assert (record.timeline.start_ns, record.timeline.end_ns, record.timeline.broke_off) == (0, 0, True)
    assert (error.kind, error.cause) == ("RunnerError", Cause.RUNNER)
    assert str(record.timeline.reason).endswith(": put in by a test")


def test_an_interrupt_while_the_meter_stops_costs_nothing(machine: VirtualMachine) -> None:
    """The last pass is over and its result is whole: nothing was left to interrupt."""

    def interrupted(timeline: Timeline) -> Timeline:
        os.kill(os.getpid(), signal.SIGINT)
        return timeline

    machine.at_meter_end = interrupted
    run = machine.run(study(experiment("a")))
    assert statuses(run.results) == [("a", "ok")]
    assert len(passes(run.results)) == 2


def test_a_leased_gpu_that_holds_no_part_of_the_model_counts_for_the_lease_only(tmp_path: Path) -> None:
    """Its energy is a bystander's; GPUs used are summed in the host's order."""
    machine = VirtualMachine(tmp_path, {GPU: lambda _: 300.0, OTHER: lambda _: 100.0})
    partly, wholly = machine.run(
        study(experiment("one", fake={"used_gpus": 1}), experiment("two"), order="written"), gpus=[GPU, OTHER]
    ).results
    for stored, used, watts, others in ((partly, [GPU], 300, [OTHER]), (wholly, [GPU, OTHER], 400, [])):
        energy, environment = stored.result.energy, stored.result.environment
        assert energy is not None
        assert environment is not None
        seconds = sum(measured.duration_s for measured in energy.passes)
        assert environment.gpu_uuids == used
        assert energy.total_j == pytest.approx(watts * seconds, rel=0.02)
        assert list(energy.bystander_j) == others
    assert known(wholly.result.multi_gpu).load_imbalance == pytest.approx(1.5, rel=0.02)
