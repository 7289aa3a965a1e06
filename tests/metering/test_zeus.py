from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import fake_nvml
import pytest
from fake_nvml import FakeGpu, FakeProcess, constant, ramp, square
from make.records import experiment
from metering.fresh_zeus import fresh_zeus
from metering.powercap import add_domain
from refused import raises
from seams.analysis import cross_check
from seams.metering import ZeusSource
from seams.records import TokenSeries

from wattdock.errors import Cause, MeterError
from wattdock.metering import Meter, Span
from wattdock.records import PassRecord, RestartRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from fake_nvml import FakeNvml
    from seams.analysis import WindowCheck
    from seams.metering import Window

    from wattdock.metering import Timeline

ORIGIN_NS = fake_nvml.VIRTUAL_ORIGIN_NS
S = 1_000_000_000
STEPS = (constant(80, 3), constant(690, 4.33), ramp(690, 200, 2), square(100, 600, 0.37, 0.5))
TWO = (FakeGpu(uuid=fake_nvml.uuid_of(1), profile=STEPS), FakeGpu(uuid=fake_nvml.uuid_of(2), seed=2))


@contextmanager
def on(library: Path, gpus: Sequence[FakeGpu]) -> Iterator[FakeNvml]:
    with fake_nvml.loaded(library, gpus=gpus) as fake, fresh_zeus():
        yield fake


def windowed(fake: FakeNvml, *lengths_s: float, lead_s: float = 2.0) -> Timeline:
    """One window after another under a Zeus meter, a second apart, in virtual time."""
    meter = Meter(ZeusSource(), clock=fake)
    meter.start()
    fake.wait(threading.Event(), lead_s)
    for number, length_s in enumerate(lengths_s):
        with meter.window(f"pass {number}"):
            fake.wait(threading.Event(), length_s)
        fake.wait(threading.Event(), 1.0)
    return meter.stop(fake.now_ns())


def compared(timeline: Timeline, used: Sequence[str]) -> list[WindowCheck]:
    """The merge's own comparison, with a pass just inside each window."""
    passes = tuple(pass_in(number, window) for number, window in enumerate(timeline.windows))
    check = cross_check(experiment(RestartRecord(0, passes=passes, timeline=timeline), used=used))
    assert check is not None
    return check.windows


def pass_in(index: int, window: Window) -> PassRecord:
    import numpy as np

    nothing = np.array([], dtype=np.int64)
    span = Span("pass", window.span.start_ns + 1000, window.span.end_ns - 1000)
    return PassRecord(span, (), TokenSeries(nothing, nothing), 1, 1, None, 0, index=index)


def test_a_window_of_zeus_agrees_with_ours_within_a_counter_step_at_each_end(library: Path) -> None:
    """Windows of odd lengths over steps, a ramp and bursts, some within a counter's period; the bound is not idle."""
    lengths_s = [*(0.31 + 0.173 * n for n in range(20)), 0.001, 0.001, 0.001, 0.001]
    with on(library, TWO) as fake:
        timeline = windowed(fake, *lengths_s)
    checks = compared(timeline, [gpu.uuid for gpu in TWO])
    assert len(checks) == len(lengths_s)
    for check in checks:
        assert check.difference_j is not None, check.reason
        assert check.bound_j is not None
        assert abs(check.difference_j) <= check.bound_j
        assert check.bound_j <= 2 * 2 * (0.12 * 690 + 0.12 * 80)
    assert max(abs(check.difference_j or 0) for check in checks) > 5


def test_gpus_that_cuda_visible_devices_hides_from_us_are_metered_under_their_own_uuids(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler sets it for what we may take, not for what we meter; and runners must still get it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with on(library, TWO) as fake:
        timeline = windowed(fake, 2.0, lead_s=4.0)
        span = timeline.windows[0].span
        true_j = [fake.energy_j(n, span.start_ns, span.end_ns) for n in range(2)]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert list(timeline.gpus) == [gpu.uuid for gpu in TWO]
    energy_j = timeline.windows[0].energy_j
    assert [energy_j[gpu.uuid] for gpu in TWO] == [pytest.approx(true, abs=90) for true in true_j]
    assert true_j[0] > 5 * true_j[1]


def test_what_zeus_has_no_call_for_is_read_through_nvml(library: Path) -> None:
    """Clocks, throttling and foreign processes are evidence that no meter may lack."""
    with on(library, [FakeGpu(processes=(FakeProcess(42),))]) as fake:
        meter = Meter(ZeusSource(), clock=fake)
        meter.start()
        (gpu,) = meter.stop(ORIGIN_NS + 3 * S).gpus.values()
    assert {
        "sm_clock_mhz",
        "violation_power_ns",
        "memory_used_bytes",
        "temperature_c",
        "power_sample_w",
    } <= gpu.series.keys()
    assert gpu.processes[0].processes[0].pid == 42
    assert gpu.events == ()


def test_a_gpu_lost_in_a_window_leaves_the_window_with_the_reason(library: Path) -> None:
    """The second meter's failure must not cost the first one's timeline."""
    gpus = (FakeGpu(uuid=fake_nvml.uuid_of(1), lost_at_s=5), TWO[1])
    with on(library, gpus) as fake:
        timeline = windowed(fake, 1.0, 4.0, 1.0)
    assert [window.reason is None for window in timeline.windows] == [True, False, False]
    assert "lost" in str(timeline.windows[1].reason)
    assert [event.kind for event in timeline.gpus[gpus[0].uuid].events] == ["gpu_lost"]
    assert compared(timeline, [gpus[1].uuid])[1].reason == timeline.windows[1].reason


@pytest.mark.parametrize(("gpus", "init_error"), [((), 12), ((), 0)])
def test_without_a_gpu_zeus_is_an_error_and_never_silence(
    library: Path, gpus: Sequence[FakeGpu], init_error: int
) -> None:
    """ZeusMonitor itself goes on and measures nothing."""
    with (
        fake_nvml.loaded(library, gpus=gpus, init_error=init_error) as fake,
        fresh_zeus(),
        raises(MeterError, "GPU", "--meter", cause=Cause.NO_GPU),
    ):
        Meter(ZeusSource(), clock=fake).start()


def test_a_gpu_that_zeus_cannot_open_is_an_error_that_names_the_other_meter(library: Path) -> None:
    """Zeus takes all GPUs or none; NVML's meter goes on without the lost one."""
    with on(library, [FakeGpu(lost_at_s=0)]) as fake, raises(MeterError, "--meter", cause=Cause.NOT_METERED):
        Meter(ZeusSource(), clock=fake).start()


@pytest.mark.parametrize(
    ("counter", "message"), [(None, "Error reading package energy"), ("/proc/self/mem", "Errno 5")]
)
def test_cpu_counters_that_zeus_cannot_open_are_an_error_that_names_the_other_meter(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter: str | None, message: str
) -> None:
    """A counter that is not there, and one whose reading the kernel refuses, though no CPU is to be measured."""
    energy_uj = add_domain(tmp_path, "intel-rapl:0", "package-0")
    energy_uj.unlink()
    if counter:
        energy_uj.symlink_to(counter)
    monkeypatch.setattr("zeus.device.cpu.rapl.RAPL_DIR", str(tmp_path))
    with on(library, TWO) as fake, raises(MeterError, "RAPL?", message, "--meter"):
        Meter(ZeusSource(), clock=fake).start()
