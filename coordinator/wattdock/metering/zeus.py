"""Read GPUs through Zeus's device layer; its monitor measures each window once more.

Zeus is imported when its source is opened, never before.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from wattdock.errors import Cause, MeterError, PreflightError
from wattdock.host import nvml
from wattdock.metering.nvml import NvmlSource, nvml_reader
from wattdock.metering.timeline import Span, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wattdock.clock import Clock
    from wattdock.metering.source import GpuReader

# First version with the calls that this file uses; the package zeus-ml, with the same import name, is older.
ZEUS_MIN = "0.16"
# Variables that hide GPUs from Zeus or make it read through its daemon instead of NVML.
HIDDEN_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT")


class ZeusSource(NvmlSource):
    """The GPUs of this host as Zeus's device layer holds them: Zeus reads the counter, NVML the rest."""

    name = "zeus"

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[Window] = []

    @classmethod
    def require_installed(cls) -> None:
        """Check that a Zeus with the calls that are used here is installed and can be imported.

        Raises:
            PreflightError: It is not there, too old, or lacks what it needs.
        """
        how = f"install it with `.venv/bin/pip install 'zeus>={ZEUS_MIN}'`, or use --meter nvml"
        try:
            installed = version("zeus")
            if Version(installed) < Version(ZEUS_MIN):
                raise PreflightError(f"meter: zeus: Zeus {installed} is too old", how, cause=Cause.VERSION)
            import zeus.device
            import zeus.monitor  # noqa: F401
        except PackageNotFoundError as error:
            raise PreflightError("meter: zeus: Zeus is not installed", how) from error
        except ImportError as error:
            raise PreflightError(f"meter: zeus: Zeus {installed} cannot be imported: {error}", how) from error

    def open(self) -> str | None:
        """Let Zeus take hold of all GPUs.

        Raises:
            MeterError: There is no GPU, NVML or Zeus cannot be talked to, or Zeus does not see every GPU.
        """
        reason = super().open()
        if reason is not None or not self.count():
            # ZeusMonitor would go on and measure nothing.
            reason = reason or "the NVIDIA driver lists no GPU"
            raise MeterError(
                f"Zeus has no GPU to measure: {reason}", "use --meter none to run without energy", cause=Cause.NO_GPU
            )
        from zeus.device import get_gpus
        from zeus.device.exception import ZeusBaseGPUError
        from zeus.exception import ZeusBaseError
        from zeus.monitor import ZeusMonitor

        self.errors = (nvml.NvmlError, ZeusBaseGPUError)
        try:
            with _variables_hidden():
                self._gpus = get_gpus().gpus
                self._uuids = [nvml.uuid(gpu.handle) for gpu in self._gpus]
                with_counter = [n for n, gpu in enumerate(self._gpus) if gpu.supports_get_total_energy_consumption()]
                # For a GPU without a counter, Zeus would start a process that polls its power without a pause; without
                # the empty list it would also look after the CPUs' counters.
                self._monitor = ZeusMonitor(gpu_indices=with_counter, cpu_indices=[], approx_instant_energy=False)
        except self.errors as error:
            raise MeterError(
                f"Zeus cannot read this host's GPUs: {error}", "--meter nvml goes on without one"
            ) from error
        except (ZeusBaseError, OSError) as error:
            # ZeusMonitor opens the CPUs' counters even where it is to read none, and knows two of the ways to fail.
            what = "ZeusMonitor did not start (the CPUs' counters, RAPL?)"
            raise MeterError(f"{what}: {error}", "--meter nvml goes on without it") from error
        if len(self._gpus) != self.count():
            raise MeterError(f"Zeus sees {len(self._gpus)} of {self.count()} GPUs", "use --meter nvml")
        return None

    def reader(self, index: int, clock: Clock) -> GpuReader:
        """Return what can be read of one GPU."""
        gpu = self._gpus[index]
        return replace(
            nvml_reader(gpu.handle, clock),
            counter_mj=lambda: nvml.plausible_mj(gpu.get_total_energy_consumption()),
            errors=self.errors,
        )

    @contextmanager
    def window(self, key: str, clock: Clock) -> Iterator[None]:
        """Measure the interval with ZeusMonitor too; the window holds the error where that fails."""
        energy_j: dict[str, float] = {}
        start_ns, failed, _ = self._call(clock, self._monitor.begin_window, key)
        try:
            yield
        finally:
            end_ns = clock.now_ns()
            if failed is None:
                end_ns, failed, measurement = self._call(clock, self._monitor.end_window, key)
                if measurement:
                    # A GPU without a counter is not in it.
                    energy_j = {self._uuids[index]: float(joules) for index, joules in measurement.gpu_energy.items()}
            self.windows.append(Window(Span(key, start_ns, end_ns), energy_j, failed))

    def _call(self, clock: Clock, call: Callable[..., Any], key: str) -> tuple[int, str | None, Any]:
        """Return the middle of a call into ZeusMonitor, its error or None, and its answer."""
        began_ns, failed, answer = clock.now_ns(), None, None
        try:
            with warnings.catch_warnings():
                # It warns of windows without a counter change; the cross-check with our figure shows those.
                warnings.simplefilter("ignore")
                answer = call(key, sync_execution=False)
        except self.errors as error:
            failed = f"ZeusMonitor: {error}"
        return (began_ns + clock.now_ns()) // 2, failed, answer


SOURCE = ZeusSource


@contextmanager
def _variables_hidden() -> Iterator[None]:
    """Take `HIDDEN_VARIABLES` out of this process's environment for a moment; runners get them as before."""
    hidden = {name: os.environ.pop(name) for name in HIDDEN_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
