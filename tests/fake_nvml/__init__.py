"""A libnvidia-ml.so.1 with simulated GPUs, built by gcc, for the real pynvml (and anything else) to load.

For a child process: ``folder = build(tmp_path); config(folder, gpus=[FakeGpu()])`` and put the folder on
LD_LIBRARY_PATH. In the same process: ``with loaded(folder, gpus=[...]) as fake: ...``.
Power profiles have a closed-form energy; all seconds of a profile count from the configuration's origin.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

from wattdock.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

SONAME = "libnvidia-ml.so.1"
CONFIG_NAME = "fake_nvml.conf"
VIRTUAL_ORIGIN_NS = 1_000_000_000_000
# Ends what hangs.
LONGEST_WAIT_S = 60.0
_SOURCES = Path(__file__).parent


@dataclass(frozen=True)
class Segment:
    """A stretch of a power profile: a shape and its parameters, W, s, rad; see `constant`, `ramp`, `sine`, `square`."""

    duration_s: float
    shape: str
    parameters: tuple[float, ...]

    def __str__(self) -> str:
        return " ".join([repr(float(self.duration_s)), self.shape, *(repr(float(p)) for p in self.parameters)])


def constant(power_w: float, duration_s: float = inf) -> Segment:
    """The same power throughout."""
    return Segment(duration_s, "constant", (power_w,))


def ramp(from_w: float, to_w: float, duration_s: float) -> Segment:
    """Power that changes linearly."""
    return Segment(duration_s, "ramp", (from_w, to_w))


def sine(mean_w: float, amplitude_w: float, period_s: float, duration_s: float = inf, phase_rad: float = 0) -> Segment:
    """Power that swings around a mean."""
    return Segment(duration_s, "sine", (mean_w, amplitude_w, period_s, phase_rad))


def square(
    low_w: float, high_w: float, period_s: float, duty: float, duration_s: float = inf, phase_s: float = 0
) -> Segment:
    """Bursts: `high_w` for the first `duty` of each period, then `low_w`."""
    return Segment(duration_s, "square", (low_w, high_w, period_s, duty, phase_s))


@dataclass(frozen=True)
class FakeProcess:
    """A process on a GPU; kind "c" compute, "g" graphics, "m" MPS, "h" one that no list shows.

    It is there from `from_s` until `until_s`; where it is hidden, or comes or goes, its memory is in use on top of the
    GPU's own meanwhile. A pid of 0 stands for the runner of the coordinator that asks; `beside_runner` ones come and go
    with it.
    """

    pid: int
    kind: str = "c"
    memory_bytes: int = 1_000_000_000
    beside_runner: bool = False
    from_s: float = 0.0
    until_s: float = inf

    def __str__(self) -> str:
        return f"{self.pid} {self.kind} {self.memory_bytes} {int(self.beside_runner)} {self.from_s} {self.until_s}"


@dataclass(frozen=True)
class FakeGpu:
    """One simulated GPU; the defaults are an idle H200, as measured.

    Attributes:
        profile: Power over time, W; the last segment goes on for ever.
        unsupported: Words separated by blanks: energy, power_instant, power_average, power, temperature,
            memory_temperature, clocks, violation, utilization, memory, memory_v2, ecc, mig, power_limit, processes, ….
        throttle_above_w, thermal_above_w: Above these, the violation counters of power and temperature grow.
        power_reading_factor: By which the instant power read, and the driver's samples, are off.
        sample_period_s: Between the driver's power samples, each a mean over `sample_width_s`; their ends jitter by
            ±`sample_jitter_s`, and their time stamps trail by `sample_lag_s`.
        sample_gap_from_s, sample_gap_until_s: In between, there are no samples.
        hbm_share: Of the power, drawn by the memory.
        frozen_at_s, thaws_at_s: In between, the energy counter stands still; what is used then never shows.
        jumps_at_s, jumps_until_s: In between, the energy counter shows `jump_mj` too much, but never less than 0.
        failing_from_s, failing_until_s: In between, calls fail with NVML's "unknown error".
        failing: Which ones, in the words of `unsupported`; all where it is empty.
        nvlink_peers: For each active NVLink the index of the GPU at its other end; -1 for a switch.
        pcie_switch: GPUs of one NUMA node with the same number hang on one PCIe switch.
        mig_slices: How many MIG devices there are, where `mig` is on.
        power_profiles_requested, power_profiles: Bits of the workload power profiles requested, and of those in force;
            without both, the GPU knows none of them, as an H200.
        power_smoothing: 1 is on, 0 off, -1 not supported.
        module_w: Power of CPU and memory on the module of a superchip; 0 for a GPU without such a module.
        counts_module: 1 where the energy counter covers the module.
        transient_error_every: Every n-th call fails with NVML's "unknown error"; 0 for never.
    """

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    name: str = "NVIDIA H200"
    profile: tuple[Segment, ...] = (constant(80.0),)
    processes: tuple[FakeProcess, ...] = ()
    unsupported: str = ""
    seed: int = 1
    memory_total_bytes: int = 150_754_820_096
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 644_939_776
    counter_offset_mj: float = 5e9
    counter_step_mj: float = 1
    period_s: float = 0.1
    phase_s: float = 0.0
    jitter_idle_s: float = 0.0015
    jitter_load_s: float = 0.013
    load_w: float = 200.0
    drop_probability: float = 0.0
    lag_s: float = 0.0
    power_lag_s: float = 0.08
    sample_period_s: float = 0.02
    sample_width_s: float = 0.02
    sample_jitter_s: float = 0.004
    sample_lag_s: float = 0.004
    sample_drop_probability: float = 0.0
    sample_gap_from_s: float = inf
    sample_gap_until_s: float = inf
    hbm_share: float = 0.15
    read_cost_s: float = 0.0032
    slow_cost_s: float = 0.017
    slow_probability: float = 0.01
    process_cost_s: float = 0.005
    reset_at_s: float = inf
    lost_at_s: float = inf
    failing_from_s: float = inf
    failing_until_s: float = inf
    failing: str = ""
    frozen_at_s: float = inf
    thaws_at_s: float = inf
    jumps_at_s: float = inf
    jumps_until_s: float = inf
    jump_mj: float = 0.0
    power_limit_w: float = 700.0
    power_limit_default_w: float = 700.0
    power_limit_changes_at_s: float = inf
    power_limit_then_w: float = 700.0
    throttle_above_w: float = inf
    thermal_above_w: float = inf
    power_reading_factor: float = 1.0
    temperature_c: float = 40.0
    memory_temperature_c: float = 45.0
    sm_clock_mhz: int = 1980
    sm_clock_max_mhz: int = 1980
    memory_clock_mhz: int = 3201
    memory_clock_max_mhz: int = 3201
    ecc: int = 1
    mig: int = 0
    persistence: int = 1
    compute_major: int = 9
    compute_minor: int = 0
    architecture: int = 9
    transient_error_every: int = 0
    utilization_percent: int = 0
    mig_slices: int = 0
    clocks_limited: int = 0
    numa_node: int = 0
    pcie_switch: int = 0
    pcie_generation: int = 5
    pcie_generation_max: int = 5
    pcie_width: int = 16
    pcie_width_max: int = 16
    nvlink_version: int = 6
    nvlink_peers: tuple[int, ...] = ()
    vbios: str = "96.00.A5.00.1A"
    power_profiles_requested: tuple[int, ...] | None = None
    power_profiles: tuple[int, ...] | None = None
    power_smoothing: int = -1
    power_smoothing_profile: int = 0
    module_w: float = 0.0
    counts_module: int = 0

    def lines(self) -> Iterator[str]:
        """This GPU's part of the configuration file."""
        yield "gpu"
        yield from (f"segment {segment}" for segment in self.profile)
        yield from (f"process {process}" for process in self.processes)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = " ".join(map(str, value))
            if field.name not in ("profile", "processes") and value is not None:
                yield f"{field.name} {value}"


# A GH200, whose energy counter covers CPU and memory, too; `unsupported: "gpu_power"` makes one whose driver tells the
# power of the module only.
GRACE_HOPPER: dict[str, Any] = {"name": "NVIDIA GH200 480GB", "module_w": 150.0, "counts_module": 1}


def uuid_of(number: int) -> str:
    """A UUID in NVML's form, different for every number."""
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def build(folder: Path) -> Path:
    """Write the library into a folder and return that folder: what to put on LD_LIBRARY_PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SONAME).write_bytes(_compiled())
    return folder


@cache
def _compiled() -> bytes:
    sources = [str(_SOURCES / name) for name in ("model.c", "nvml.c")]
    with tempfile.NamedTemporaryFile(suffix=".so") as built:
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}", "-o", built.name, *sources, "-lm"]
        subprocess.run(command, check=True)
        return Path(built.name).read_bytes()


def config(
    folder: Path,
    *,
    gpus: Sequence[FakeGpu] = (),
    virtual_clock: bool = False,
    origin_ns: int | None = None,
    init_error: int = 0,
    count_error: int = 0,
    shutdown_error: int = 0,
    wall_step: tuple[float, float] = (inf, 0.0),
) -> Path:
    """Write the library's configuration beside it and return the file.

    Args:
        folder: What `build` returned.
        gpus: In NVML's order.
        virtual_clock: Calls advance a clock of their thread instead of taking time.
        origin_ns: CLOCK_MONOTONIC at which the profiles begin; now, or a fixed instant on the virtual clock.
        init_error: NVML's error number that initialising ends with, 9 for a driver that is not loaded.
        count_error, shutdown_error: The same for counting the GPUs and for closing NVML.
        wall_step: When the time of day is set, s, and by how much, s.
    """
    default_ns = VIRTUAL_ORIGIN_NS if virtual_clock else time.monotonic_ns()
    head = [
        f"clock {'virtual' if virtual_clock else 'real'}",
        f"origin_ns {default_ns if origin_ns is None else origin_ns}",
        f"init_error {init_error}",
        f"count_error {count_error}",
        f"shutdown_error {shutdown_error}",
        f"wall_steps_at_s {wall_step[0]}",
        f"wall_step_s {wall_step[1]}",
        "driver 580.159.03",
        "nvml 13.580.159.03",
        "cuda_driver 13000",
    ]
    path = folder / CONFIG_NAME
    path.write_text("\n".join([*head, *(line for gpu in gpus for line in gpu.lines())]) + "\n")
    return path


# One per process: a second library of the same name would never be found by name.
_opened: list[ctypes.PyDLL] = []


def _library(path: Path) -> ctypes.PyDLL:
    if not _opened:
        _opened.append(_open(path))
    return _opened[0]


def _open(library: Path) -> ctypes.PyDLL:
    opened = ctypes.PyDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    opened.fake_nvml_now_ns.restype = opened.fake_nvml_wall_ns.restype = ctypes.c_int64
    opened.fake_nvml_pass_ns.argtypes = [ctypes.c_int64]
    for name in ("fake_nvml_power_w", "fake_nvml_energy_j", "fake_nvml_counter_mj"):
        getattr(opened, name).restype = ctypes.c_double
        getattr(opened, name).argtypes = [ctypes.c_int, ctypes.c_int64]
    return opened


class FakeNvml(Clock):
    """The library as loaded into this process; also a `Clock` on the library's own time.

    Attributes:
        now_ns: CLOCK_MONOTONIC, or the calling thread's virtual clock; a meter asks several times per read.
    """

    now_ns: Callable[[], int]

    def __init__(self, library: ctypes.PyDLL, folder: Path, *, is_virtual: bool) -> None:
        self._library = library
        self.folder = folder
        self._is_virtual = is_virtual
        self._called: set[threading.Thread] = {threading.main_thread()}
        self.now_ns = library.fake_nvml_now_ns

    def configure(self, path: Path) -> None:
        """Start again from a configuration file; the virtual clock goes back to its origin."""
        if bad := self._library.fake_nvml_configure(str(path).encode()):
            raise ValueError(f"{path}: line {bad}")

    def wall_ns(self) -> int:
        """The time of day, which the driver stamps its samples with, nanoseconds."""
        return int(self._library.fake_nvml_wall_ns())

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Let virtual time pass; an event that is set ends the wait at once.

        The first wait of another thread really is one: its time stands still until somebody calls it, so that a busy
        machine, on which the test goes on late, does not let it run ahead.
        """
        thread = threading.current_thread()
        if self._is_virtual and thread not in self._called:
            self._called.add(thread)
            event.wait(LONGEST_WAIT_S)
        if event.is_set():
            return True
        self._library.fake_nvml_pass_ns(int(timeout_s * 1e9))
        return event.is_set()

    def energy_j(self, index: int, start_ns: int, end_ns: int) -> float:
        """True energy of a window, J, in closed form."""
        at = self._library.fake_nvml_energy_j
        return float(at(index, end_ns) - at(index, start_ns))

    def power_w(self, index: int, at_ns: int) -> float:
        """True power at an instant, W."""
        return float(self._library.fake_nvml_power_w(index, at_ns))

    def counter_mj(self, index: int, at_ns: int) -> int:
        """What a read that took no time would return at an instant, mJ."""
        return int(self._library.fake_nvml_counter_mj(index, at_ns))


@contextmanager
def loaded(
    folder: Path,
    *,
    gpus: Sequence[FakeGpu] = (),
    virtual_clock: bool = True,
    wall_step: tuple[float, float] = (inf, 0.0),
    lacking: Collection[str] = (),
    **errors: int,
) -> Iterator[FakeNvml]:
    """Load the library that `build` made into this process, so that pynvml finds it by name, and configure it.

    Args:
        lacking: Names of functions that the library shall not have, as an older driver's has not.
        errors: `init_error` and the others of `config`.
    """
    fake = FakeNvml(_library(folder / SONAME), folder, is_virtual=virtual_clock)
    fake.configure(config(folder, gpus=gpus, virtual_clock=virtual_clock, wall_step=wall_step, **errors))
    _forget()
    # Where no call takes time, threads need not hand over Python's lock at each.
    load = ctypes.PyDLL if virtual_clock else ctypes.CDLL
    pynvml.CDLL = lambda name: _OlderLibrary(load(name), lacking)
    try:
        yield fake
    finally:
        pynvml.CDLL = ctypes.CDLL
        # It stays in this process: from now on it must look like a machine without a driver.
        fake.configure(config(folder, init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
        _forget()


@dataclass(frozen=True)
class _OlderLibrary:
    """A library without some of its functions."""

    library: ctypes.CDLL
    lacking: Collection[str]

    def __getattr__(self, name: str) -> object:
        if name in self.lacking:
            raise AttributeError(name)
        return getattr(self.library, name)


def _forget() -> None:
    """Whatever pynvml loaded and remembers of another library must not answer."""
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()
