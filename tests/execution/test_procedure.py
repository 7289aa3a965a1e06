"""The procedure for one experiment, on a client that answers as a runner would, in virtual time."""

from __future__ import annotations

import dataclasses
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import pytest
from make.machine import VirtualMachine, experiment, study
from make.records import measured, request
from make.virtual_meter import VirtualClock
from refused import raises
from seams.execution import SETTLE_S, LoadedRunner, Recording, measured_passes
from seams.inputs import shape_config
from seams.metering import Source

from wattdock.clock import NS_PER_S, ClockCheck
from wattdock.config import ExperimentConfig
from wattdock.errors import RunnerError
from wattdock.execution import Interrupts
from wattdock.inputs import ModelFolder
from wattdock.metering import Meter
from wattdock.records import RestartRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
) -> Recording:
    clock = VirtualClock()
    context: Any = SimpleNamespace(
        machine=SimpleNamespace(clock=clock, elsewhere=lambda: (None, ())),
        folder=SimpleNamespace(begun=datetime.fromtimestamp(0, UTC)),
        emit=lambda _: None,
        interrupts=Interrupts(),
    )
    runner = LoadedRunner(
        client=cast("Any", client),
        meter=Meter(Source("test")),
        pids=lambda: frozenset(pids),
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
    workload = {"batch_size": 2, "min_requests": 6, "min_duration_s": 30, "seed": 5, "prompts": {"count": 6}}
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


def test_processes_are_listed_where_a_pass_begins_and_ends(tmp_path: Path) -> None:
    """Its texts may be encoded for long before it, and its record be sent for long after it."""
    machine = VirtualMachine(tmp_path, power={"GPU-1": lambda _: 300.0})
    config = experiment("slow", fake={"encode_s": 20.0, "send_s": 20.0}, warmup={"passes": 0})
    [stored] = machine.run(study(config)).results
    [restart], [meter] = stored.restarts(), machine.meters
    assert len(restart.passes) == config.repeats.passes
    for at_ns in (at_ns for each in restart.passes for at_ns in (each.span.start_ns, each.span.end_ns)):
        assert min(abs(edge_ns - at_ns) for edge_ns in meter.edges_ns) < NS_PER_S, meter.edges_ns


def test_a_restart_begins_at_the_same_instant_by_both_clocks(tmp_path: Path) -> None:
    """Readings by time of day are laid beside its spans."""
    machine = VirtualMachine(tmp_path, power={"GPU-1": lambda _: 300.0})
    [stored] = machine.run(study(experiment("twice", repeats={"restarts": 2}))).results
    for restart in stored.restarts():
        assert restart.started_ns
        begun = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=restart.started_ns // 1000)
        assert restart.started_utc == begun.isoformat(timespec="milliseconds")
        assert restart.started_ns <= restart.passes[0].span.start_ns
