"""What can be asked of one GPU, whoever answers: NVML itself, or Zeus's device layer over it.

Only says what to call and what its errors mean; `sampler` decides when, `nvml` and `zeus` make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ProcessKind = Literal["compute", "graphics", "mps"]
Meaning = Literal["gpu_lost", "not_supported", "read_error"]


@dataclass(frozen=True)
class PowerRead:
    """One way to read power in watts: the series that it goes to, and the call's name."""

    series: str
    call: str
    read: Callable[[], float]


@dataclass(frozen=True)
class Source:
    """One GPU's readings.

    Attributes:
        uuid: In NVML's form, "GPU-…".
        counter_mj: Energy since the driver was loaded, millijoules.
        power: Ways to read power, by preference.
        slow: What is read once a second, by series; the unit stands in the name.
        processes: (process id, bytes or None) of each process of one kind.
        errors: What these calls raise.
        meaning: What such an error says of the GPU.
    """

    uuid: str
    counter_mj: Callable[[], int]
    power: tuple[PowerRead, ...]
    slow: Mapping[str, Callable[[], float]]
    processes: Callable[[ProcessKind], tuple[tuple[int, int | None], ...]]
    errors: tuple[type[Exception], ...]
    meaning: Callable[[Exception], Meaning]


class GpuHost(Protocol):
    """The GPUs of this machine, in NVML's order."""

    name: str

    def open(self) -> str | None:
        """Return why there is no GPU to ask, or None when there may be (then `close` is due).

        Raises:
            MeterError: A driver is there and cannot be talked to.
        """
        ...

    def count(self) -> int:
        """Return how many GPUs there are."""
        ...

    def source(self, index: int) -> Source:
        """Return one GPU's readings.

        Raises:
            NvmlError: This GPU does not answer.
        """
        ...

    def close(self) -> None:
        """Undo `open`."""
        ...
