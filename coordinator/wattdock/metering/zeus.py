"""The host meter through Zeus: its device layer fills the timeline, its monitor measures each window once more.

Knows no spans. Zeus is imported when such a meter starts, never before.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wattdock.errors import MeterError
from wattdock.host import nvml
from wattdock.metering.gpus import GpuMeter
from wattdock.metering.nvml import NvmlHost, nvml_meaning, nvml_source
from wattdock.metering.source import PowerRead
from wattdock.metering.timeline import Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wattdock.metering.protocol import Clock
    from wattdock.metering.source import Source
    from wattdock.metering.timeline import Timeline

# Would hide GPUs of this host from Zeus, or put its daemon between us and NVML.
HIDDEN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT")


class ZeusMeter(GpuMeter):
    """Meters every GPU of the host through Zeus; wraps each window in one of ZeusMonitor's."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._zeus = ZeusHost()
        super().__init__(self._zeus, clock)
        self._windows: list[Window] = []

    def start(self) -> None:
        """Find the GPUs and begin to record.

        Raises:
            MeterError: There is no GPU, one of them does not answer Zeus, or the meter was started before.
        """
        super().start()
        if self.reason is not None:
            # ZeusMonitor would go on and measure nothing.
            raise MeterError(f"Zeus has no GPU to measure: {self.reason}; use --meter none to run without energy")

    @contextmanager
    def window(self, key: str) -> Iterator[None]:
        """Measure what is done inside with ZeusMonitor too; what goes wrong with that is kept with the window."""
        with super().window(key):
            start_ns, failed = self._called(lambda: self._zeus.begin(key))
            try:
                yield
            finally:
                energy_j: dict[str, float] = {}
                end_ns, end_failed = self._called(lambda: energy_j.update(self._zeus.end(key)) if not failed else None)
                self._windows.append(Window(key, start_ns, end_ns, "zeus", energy_j, failed or end_failed))

    def peek(self) -> Timeline:
        """Return what was recorded up to now, with the windows that are over."""
        return replace(super().peek(), windows=tuple(self._windows))

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Return the timeline, as every meter does, with the windows.

        Raises:
            MeterError: The meter was not started.
        """
        return replace(super().stop(after_ns), windows=tuple(self._windows))

    def _called(self, call: Any) -> tuple[int, str | None]:
        """The middle of a call into ZeusMonitor, and its error."""
        began_ns, failed = self.clock.now_ns(), None
        try:
            call()
        except self._zeus.errors as error:
            failed = f"ZeusMonitor: {error}"
        return (began_ns + self.clock.now_ns()) // 2, failed


class ZeusHost(NvmlHost):
    """The GPUs of this host as Zeus's device layer holds them; satisfies `GpuHost`.

    Zeus reads the counter, power and temperature; what it has no call for is read through NVML on Zeus's handles.
    """

    name = "zeus"
    errors: tuple[type[Exception], ...] = ()

    def open(self) -> str | None:
        """Let Zeus take hold of all GPUs; return why there is none, or None.

        Raises:
            MeterError: NVML or Zeus cannot be talked to, or Zeus does not see every GPU.
        """
        if reason := super().open():
            return reason
        from zeus.device import get_gpus
        from zeus.device.exception import ZeusBaseGPUError
        from zeus.exception import ZeusBaseError
        from zeus.monitor import ZeusMonitor

        self.errors = (nvml.NvmlError, ZeusBaseGPUError)
        try:
            with _hidden(HIDDEN_VARIABLES):
                self._gpus = get_gpus().gpus
                self._uuids = [nvml.uuid(gpu.handle) for gpu in self._gpus]
                with_counter = [n for n, gpu in enumerate(self._gpus) if gpu.supports_get_total_energy_consumption()]
                # For a GPU without a counter, Zeus would start a process that polls its power without a pause; without
                # the empty list it would also look after the CPUs' counters.
                self._monitor = ZeusMonitor(gpu_indices=with_counter, cpu_indices=[], approx_instant_energy=False)
        except self.errors as error:
            raise MeterError(f"Zeus cannot read this host's GPUs: {error}; --meter nvml goes on without one") from error
        except (ZeusBaseError, OSError) as error:
            # ZeusMonitor opens the CPUs' counters even where it is to read none, and knows two of the ways to fail.
            what = "ZeusMonitor did not start (the CPUs' counters, RAPL?)"
            raise MeterError(f"{what}: {error}; --meter nvml goes on without it") from error
        if len(self._gpus) != self.count():
            raise MeterError(f"Zeus sees {len(self._gpus)} of {self.count()} GPUs; use --meter nvml")
        return None

    def source(self, index: int) -> Source:
        """Return one GPU's readings: Zeus's where it has the call, else NVML's."""
        gpu = self._gpus[index]
        own = nvml_source(gpu.handle)
        return replace(
            own,
            counter_mj=lambda: nvml.plausible_mj(gpu.get_total_energy_consumption()),
            power=(
                PowerRead("power_w", "get_instant_power_usage", lambda: gpu.get_instant_power_usage() / nvml.MW_PER_W),
                PowerRead(
                    "power_average_w", "get_average_power_usage", lambda: gpu.get_average_power_usage() / nvml.MW_PER_W
                ),
                *(way for way in own.power if way.call == "power_usage_w"),
            ),
            slow={**own.slow, "temperature_c": gpu.get_gpu_temperature},
            errors=self.errors,
            # Zeus wraps NVML's errors in its own.
            meaning=lambda error: nvml_meaning(error.__cause__ or error),
        )

    def begin(self, key: str) -> None:
        """Open a window of ZeusMonitor."""
        self._monitor.begin_window(key, sync_execution=False)

    def end(self, key: str) -> dict[str, float]:
        """Close it and return its joules per GPU UUID; a GPU without a counter is not in it."""
        with warnings.catch_warnings():
            # It warns of windows without a counter change; the figure stands beside ours, which tells.
            warnings.simplefilter("ignore")
            done = self._monitor.end_window(key, sync_execution=False)
        return {self._uuids[index]: float(energy_j) for index, energy_j in done.gpu_energy.items()}


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Take variables out of this process's environment for a moment; runners get them as before."""
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
