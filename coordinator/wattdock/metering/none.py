"""The meter that measures nothing, for machines and runs without energy; its timeline says why."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from wattdock.errors import MeterError
from wattdock.metering.protocol import SystemClock
from wattdock.metering.timeline import Timeline

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from wattdock.metering.protocol import Clock


class NoMeter:
    """Satisfies `Meter` and reads nothing.

    Args:
        reason: Why there is no GPU's energy; stands in every result instead of a figure.
        name: What the timeline calls the meter.
    """

    def __init__(self, reason: str, clock: Clock | None = None, *, name: str = "none") -> None:
        self._reason = reason
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._start_ns: int | None = None

    def start(self) -> None:
        """Note the time."""
        self._start_ns = self._clock.now_ns()

    def window(self, key: str) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: there is nothing to read."""
        return nullcontext()

    def watts(self) -> dict[str, float | None]:
        """Return nothing."""
        return {}

    def peek(self) -> Timeline:
        """Return a timeline without GPUs."""
        now_ns = self._clock.now_ns()
        start_ns = now_ns if self._start_ns is None else self._start_ns
        return Timeline(meter=self._name, start_ns=start_ns, end_ns=now_ns, reason=self._reason)

    def stop(self, after_ns: int | None = None) -> Timeline:
        """Return a timeline without GPUs, at once.

        Raises:
            MeterError: The meter was not started.
        """
        if self._start_ns is None:
            raise MeterError("the meter was stopped before it was started")
        end_ns = max(self._clock.now_ns(), after_ns or 0)
        return Timeline(meter=self._name, start_ns=self._start_ns, end_ns=end_ns, reason=self._reason)
