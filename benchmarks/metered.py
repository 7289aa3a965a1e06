"""Run work with the host meter on, or without it but otherwise alike, and know what the meter's threads took.

Knows neither engines nor statistics.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from wattdock.clock import NS_PER_S
from wattdock.host import GpuInventory
from wattdock.launch.runners import REPO
from wattdock.metering.meter import Meter
from wattdock.metering.nvml import NvmlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Heard = Callable[[object], bool]

T = TypeVar("T")

# A meter polls more often in its first second, to learn the counter's period; a run's passes come later.
LEAD_S = 1.2


@dataclass
class MeterCost:
    """What sampling took, summed over all metered blocks.

    Attributes:
        metered_s: Time between the readings of the threads' CPU clocks.
        cpu_s: CPU time of all sampling threads meanwhile.
        threads: One per GPU.
        busy: Share of each GPU's metered time that its thread spent inside NVML calls, one per block and GPU.
    """

    metered_s: float = 0.0
    cpu_s: float = 0.0
    threads: int = 0
    busy: list[float] = field(default_factory=list)

    def run_metered(self, work: Callable[[Heard], T]) -> T:
        """Return what `work` returns under a running meter; what it is given shall be called at each sign of life.

        Raises:
            MeterError: The meter cannot run.
        """
        meter = Meter(NvmlSource())
        meter.start()
        time.sleep(LEAD_S)
        meter.note_edge()
        began_s, cpu_began_s = time.monotonic(), sum(thread_cpu_s())

        def heard(_: object) -> bool:
            # A run shows watts at each heartbeat.
            meter.watts()
            return True

        done = work(heard)
        threads = thread_cpu_s()
        self.metered_s += time.monotonic() - began_s
        self.cpu_s += sum(threads) - cpu_began_s
        self.threads = len(threads)
        meter.note_edge()
        # Nothing after the block is wanted, so the second that the meter records beyond its end may be over.
        timeline = meter.stop(after_ns=time.monotonic_ns() - NS_PER_S)
        self.busy += [gpu.busy_fraction for gpu in timeline.gpus.values() if gpu.busy_fraction is not None]
        return done


def run_unmetered(work: Callable[[Heard], T]) -> T:
    """Return what `work` returns, begun after the same pause."""
    time.sleep(LEAD_S)
    return work(lambda _: True)


def thread_cpu_s() -> list[float]:
    """Return the CPU time so far of each sampling thread of this process, in seconds.

    Source: pthread_getcpuclockid(3).
    """
    names = [thread for thread in threading.enumerate() if thread.name.startswith("meter-")]
    return [time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in names if thread.ident]


@contextmanager
def something_to_meter(folder: Path) -> Iterator[str | None]:
    """Say what the meter reads: this machine's GPUs, or a stand-in for NVML; None where there is neither.

    Args:
        folder: Where the stand-in is built.
    """
    real = GpuInventory.here()
    if real.gpus:
        yield f"{len(real.gpus)} × {real.gpus[0].name}, driver {real.gpus[0].driver_version}"
    elif shutil.which("gcc") is None:
        yield None
    else:
        sys.path.append(str(REPO / "tests"))
        import fake_nvml

        gpus = [fake_nvml.FakeGpu(uuid=fake_nvml.uuid_of(0))]
        with fake_nvml.loaded(fake_nvml.build(folder / "nvml"), gpus=gpus, virtual_clock=False):
            yield "1 simulated H200: NVML's calls take their time, but no CPU"
