"""What a source of energy counters offers: NVML, Zeus or another library derives from `Source`.

A new source is a file NAME.py beside `nvml`, whose `SOURCE` makes a `GpuReader` for each GPU, and a value NAME of the
setting `meter`. Says what can be called and what its errors mean; `sampler` decides when.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from wattdock.clock import Clock
    from wattdock.host import nvml
    from wattdock.metering.timeline import Window
    from wattdock.values import EnergyBoundary

Meaning = Literal["gpu_lost", "not_supported", "read_error"]


@dataclass(frozen=True)
class PowerRead:
    """One way to read power in watts: the name of its series, the name of the call, and the call."""

    series: str
    call: str
    read: Callable[[], float]


@dataclass(frozen=True)
class GpuReader:
    """What can be read of one GPU.

    Attributes:
        uuid: In NVML's form, "GPU-…".
        counter_mj: Energy since the driver was loaded, millijoules.
        samples: Samples of power that the driver keeps: time of day in microseconds, watts; None where this library has
            no such call.
        power: Ways to read power where there are no such samples, by preference.
        cheap: What takes less than 0.1 ms to read, by name with unit.
        slow: What is read once a second, by name with unit.
        processes: (process id, bytes or None) of each process of one kind.
        errors: What these calls raise.
        meaning: What such an error says of the GPU.
        boundary: What `counter_mj`, `samples` and `power` cover.
    """

    uuid: str
    counter_mj: Callable[[], int]
    samples: Callable[[], list[tuple[int, float]]] | None
    power: tuple[PowerRead, ...]
    cheap: Mapping[str, Callable[[], float]]
    slow: Mapping[str, Callable[[], float]]
    processes: Callable[[nvml.ProcessKind], tuple[tuple[int, int | None], ...]]
    errors: tuple[type[Exception], ...]
    meaning: Callable[[Exception], Meaning]
    boundary: EnergyBoundary = "gpu_boards"


class Source:
    """The GPUs of this machine as one library reads them, in NVML's order; this class itself reads none.

    Attributes:
        name: What a timeline calls a meter with this source.
        windows: What the source itself measured of each `window`, if it measures any.
        errors: What `open`, `count` and `reader` raise.
    """

    name = "none"
    errors: tuple[type[Exception], ...] = ()
    windows: Sequence[Window] = ()

    @classmethod
    def require_installed(cls) -> None:
        """Check that this machine has the library.

        Raises:
            PreflightError: Says how to get the library.
        """

    def __init__(self, reason: str = "", name: str = "") -> None:
        """Make a source; one that reads no GPU has a reason, which results hold instead of a figure."""
        self.name = name or self.name
        self._reason = reason

    def open(self) -> str | None:
        """Return why there is no GPU to read, or None; then `close` is due.

        Raises:
            MeterError, errors: A driver is there and cannot be talked to.
        """
        return self._reason

    def meaning(self, error: Exception) -> Meaning:  # noqa: ARG002
        """Return what one of `errors` says of a GPU."""
        return "read_error"

    def count(self) -> int:
        """Return how many GPUs there are."""
        return 0

    def reader(self, index: int, clock: Clock) -> GpuReader:
        """Return what can be read of one GPU; may take some seconds.

        Raises:
            errors: This GPU does not answer.
        """
        raise NotImplementedError

    def window(self, key: str, clock: Clock) -> AbstractContextManager[None]:  # noqa: ARG002
        """Enter around an interval that the source may measure by itself."""
        return nullcontext()

    def close(self) -> None:
        """Undo `open`."""
