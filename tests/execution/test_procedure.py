"""The procedure for one experiment, on a client that answers as a runner would, in virtual time."""

from __future__ import annotations

import dataclasses
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest
from make.records import measured, request, stepped_power, timeline
from make.virtual_meter import VirtualClock
from refused import raises
from seams.analysis import IdleState, not_cooled_down
from seams.execution import SETTLE_S, LoadedRunner, Recording, measured_passes, wait_until_idle
from seams.inputs import shape_config
from seams.metering import Source
from seams.study import Event, IdleStarted, Note, WarmUpFinished

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.config import ExperimentConfig, IdleSpec
from wattdock.errors import RunnerError
from wattdock.execution import Interrupts
from wattdock.inputs import ModelFolder
from wattdock.metering import Meter, MeterEvent
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wattdock.metering import Timeline
    from wattdock.records import PassRecord
    from wattdock.runner import PassRequest

GPU = "GPU-a"
MODEL = ModelFolder(Path(), "shape", "tiny", "config-sha256:1", False, True, config=shape_config("tiny-llama"))


@dataclass
class DyingClient:
    """A runner that serves passes of a second and, after so many checks of its clock, dies at the end of one.

    Attributes:
        process: Its process, if it has one of its own.
        asked: Each pass that it was asked for.
    """

    checks_left: int
    process: subprocess.Popen[bytes] | None = None
    asked: list[PassRequest] = field(default_factory=list)

    def generate(self, asked: PassRequest, **_: object) -> PassRecord:
        self.asked.append(asked)
        if self.process and not self.checks_left:
            self.process.kill()
            self.process.wait()
        begin_s = len(self.asked)
        return measured(0, begin_s, begin_s + 1, (request(0, begin_s, begin_s + 0.5, begin_s + 1, 3),))

    def check_clock(self) -> ClockCheck:
        if not self.checks_left:
            raise RunnerError("the runner died")
        self.checks_left -= 1
        return ClockCheck("boot", 1)


def measure(
    client: DyingClient,
    settings: dict[str, Any],
    *,
    gpu_uuids: tuple[str, ...] = (),
    pids: Iterable[int] = (),
    model: ModelFolder = MODEL,
    save: Callable[[Recording], None] = lambda _: None,
    lease_fault: Callable[[], str | None] = lambda: None,
    meter: Meter | None = None,
    emit: Callable[[Event], None] = lambda _: None,
) -> Recording:
    clock = VirtualClock()
    context: Any = SimpleNamespace(
        machine=SimpleNamespace(clock=clock),
        folder=SimpleNamespace(begun=datetime.fromtimestamp(0, UTC)),
        emit=emit,
        interrupts=Interrupts(),
    )
    runner = LoadedRunner(
        client=cast("Any", client),
        description=cast("Any", None),
        meter=meter or Meter(Source("test")),
        pids=lambda: frozenset(pids),
        check=lambda: None,
        model=model,
        gpu_uuids=gpu_uuids,
        context=context,
    )
    config = ExperimentConfig.model_validate(settings)
    recording = Recording(config, RestartRecord(0), passes=frozenset(range(config.repeats.passes)))
    with patch.object(LoadedRunner, "lease_fault", lambda _: lease_fault()):
        for _ in measured_passes(runner, recording):
            save(recording)
    return recording


def test_a_pass_whose_runner_died_before_its_clock_was_checked_is_kept_as_unchecked() -> None:
    """It costs no pass, ends the restart, and is durable with the mark; whose work the CPUs did is unknown."""
    saved: list[list[bool]] = []

    def save(recording: Recording) -> None:
        saved.append([measured.clock_checked for measured in recording.record.passes])
        assert recording.record.passes[-1].clock_checked or recording.record.passes[-1].cpu_others_share is None

    with subprocess.Popen(["sh", "-c", "read line", "wattdock_runner"], stdin=subprocess.PIPE) as process:
        client = DyingClient(checks_left=1, process=process)
        with raises(RunnerError):
            measure(client, {"warmup": {"passes": 0}, "repeats": {"passes": 3}}, pids=[process.pid], save=save)
    assert saved == [[True], [True, False]]


def test_a_lease_that_was_lost_in_a_pass_stands_in_the_pass() -> None:
    """It is looked at when the pass has ended; those before it are as sound as they were."""
    faults, seen = iter(["in the warm-up", None, "removed"]), list[str | None]()

    def save(recording: Recording) -> None:
        seen.append(recording.record.passes[-1].lease_fault)

    settings = {"warmup": {"passes": 1}, "repeats": {"passes": 2}}
    measure(DyingClient(checks_left=2), settings, save=save, lease_fault=lambda: next(faults))
    assert seen == [None, "removed"]


@pytest.mark.parametrize(("gpu_uuids", "after_pass_s"), [((GPU,), SETTLE_S), ((), 0)])
def test_only_after_a_measured_pass_on_gpus_is_the_counters_next_change_waited_for(
    gpu_uuids: tuple[str, ...], after_pass_s: float
) -> None:
    """After a warm-up, and where no GPU is metered, it would be a second lost for nothing."""
    client = DyingClient(checks_left=1)
    measure(client, {"warmup": {"passes": 1}, "repeats": {"passes": 1}}, gpu_uuids=gpu_uuids)
    assert [asked.settle_s for asked in client.asked] == [0, after_pass_s]


def test_each_pass_has_prompts_and_a_seed_of_its_own_and_its_own_least_work() -> None:
    """A warm-up's follow those of all measured passes, and it lasts no longer than it must."""
    client = DyingClient(checks_left=2)
    workload = {"batch_size": 2, "min_requests": 6, "min_duration_s": 30, "seed": 5}
    measure(client, {"warmup": {"passes": 1}, "repeats": {"passes": 2}, "workload": workload})
    assert [(asked.min_requests, asked.min_duration_s) for asked in client.asked] == [(4, None), (6, 30), (6, 30)]
    assert len({asked.prompts.seed for asked in client.asked}) == 3
    sent = [item for asked in client.asked for item in asked.prompts.items]
    assert len(set(sent)) == len(sent)


@pytest.mark.parametrize(("setting", "ignores"), [(None, True), (False, False), (True, True)])
def test_an_end_of_sequence_ends_no_request_on_random_weights_unless_it_is_to(
    setting: bool | None, *, ignores: bool
) -> None:
    """There it means nothing; with real weights it is the model's answer that is over."""
    client = DyingClient(checks_left=2)
    settings = {"warmup": {"passes": 0}, "repeats": {"passes": 1}, "workload": {"ignore_eos": setting}}
    measure(client, settings)
    measure(client, settings, model=dataclasses.replace(MODEL, random_weights=False))
    assert [asked.ignore_eos for asked in client.asked] == [ignores, bool(setting)]


class Cooling(Meter):
    """A meter of one GPU that draws 100 W for three seconds from `now_s` on, and 80 W afterwards."""

    def __init__(self, now_s: float) -> None:
        super().__init__(Source("test"))
        unsupported = MeterEvent(0, "not_supported", reading="temperature_c")
        self._gpu = dataclasses.replace(stepped_power(GPU, [(now_s + 3, 100), (30, 80)]), events=(unsupported,))

    def peek(self, after_ns: int | None = None) -> Timeline:
        """As if what is to come had been seen already."""
        return timeline(self._gpu)


@pytest.mark.parametrize(("gpu_uuids", "energy_j"), [((), None), ((GPU,), 100), ((GPU, "GPU-b"), None)])
def test_a_warm_up_s_joules_are_those_of_all_gpus_or_not_known(
    gpu_uuids: tuple[str, ...], energy_j: float | None
) -> None:
    """Seconds at 100 W of the one GPU that the meter sees; a sum without the other one, or of none, says nothing.

    Two passes reach the cap of 2 s.
    """
    warm_up = {"profile": "steady", "min_s": 2, "window_s": 2, "cap_s": 2}
    settings, events = {"warmup": warm_up, "repeats": {"passes": 1}}, list[Event]()
    recording = measure(DyingClient(checks_left=1), settings, gpu_uuids=gpu_uuids, meter=Cooling(5), emit=events.append)
    assert [sample.energy_j for sample in recording.record.warm_up] == [energy_j and pytest.approx(energy_j)] * 2
    [finished] = [event for event in events if isinstance(event, WarmUpFinished)]
    assert (finished.passes, finished.duration_s) == (2, 2)


@pytest.mark.parametrize(("band", "watts"), [(0.05, 80), (0.5, 100)])
def test_a_later_runner_starts_when_gpus_have_cooled_down_to_what_they_were_at_first(band: float, watts: int) -> None:
    """A power that does not change is not enough: it may be that of a GPU that is still hot."""
    limits = IdleSpec(duration_s=0.5, band=band)
    clock, events = VirtualClock(), list[Event]()
    _, state = wait_until_idle(
        "idle-empty",
        limits,
        [GPU],
        meter=Cooling(clock.now_ns() / NS_PER_S),
        clock=clock,
        emit=events.append,
        check=lambda: None,
        initial={GPU: IdleState(80.0, None)},
    )
    assert state[GPU].power_w == pytest.approx(watts, rel=1e-3)
    assert events == [IdleStarted("idle-empty", 0.5)]


@pytest.mark.parametrize(("cap_s", "waited_s", "told"), [(30, 31.5, True), (31.5, 31.5, True), (60, 52.5, False)])
def test_gpus_are_looked_at_every_three_seconds_until_they_are_idle_or_the_cap(
    cap_s: float, waited_s: float, *, told: bool
) -> None:
    """What is asked at least twice a second may end the wait; the span is the last of it, and has readings beyond."""
    clock, events, asked_ns = VirtualClock(), list[Event](), list[int]()
    began_ns = clock.now_ns()

    class SeenLate(Cooling):
        def peek(self, after_ns: int | None = None) -> Timeline:
            assert after_ns == clock.now_ns() - round(SETTLE_S * NS_PER_S)
            return super().peek() if clock.now_ns() - began_ns > 50 * NS_PER_S else timeline()

    span, _ = wait_until_idle(
        "idle-empty",
        IdleSpec(duration_s=0.5, cap_s=cap_s),
        [GPU],
        meter=SeenLate(began_ns / NS_PER_S + 20),
        clock=clock,
        emit=events.append,
        check=lambda: asked_ns.append(clock.now_ns()),
    )
    assert (clock.now_ns() - began_ns) / NS_PER_S == waited_s
    assert (span.end_ns, span.duration_s) == (clock.now_ns() - round(SETTLE_S * NS_PER_S), 0.5)
    assert max(map(int.__sub__, asked_ns[1:], asked_ns)) <= NS_PER_S / 2
    notes = [event.text for event in events if isinstance(event, Note)]
    assert notes == [f"idle-empty: not idle after {cap_s} s: {GPU}: the meter did not see it"] * told


def test_a_gpu_that_does_not_cool_down_is_told_at_the_cap() -> None:
    """In power and in temperature, each with what it was at first."""
    hot, cold = {GPU: IdleState(90.0, 50.0)}, {GPU: IdleState(80.0, 40.0)}
    assert not_cooled_down(hot, cold, IdleSpec()) == (
        f"{GPU}: 90.0 W, 80.0 W at first (limit +5%)",
        f"{GPU}: 50 °C, 40 °C at first (limit +5 °C)",
    )
    assert not_cooled_down(cold, hot, IdleSpec()) == ()
    assert not_cooled_down(hot, {}, IdleSpec()) == ()
