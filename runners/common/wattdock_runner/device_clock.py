"""Date events on a device's stream by the host's clock, without making host or device wait for the other.

Must not know: engines. Imports no torch: who has it passes `torch.cuda`.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from wattdock_runner.clock import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NS_PER_MS = 1_000_000
# How often an event is dated. The host may lose its core for milliseconds between an event and its reading, but
# hardly every time.
DATING_TRIES = 5
# How many events are made before a pass, so that a mark only records an event; further marks make their own.
SPARE_EVENTS = 2048


class DeviceClock:
    """Marks instants of one device; on a CPU, which works when it is told to, they are the host's.

    On a GPU a mark is an event on the current stream: it happens when the work before it is done, and is dated after
    the pass.

    Args:
        device: A device of torch.
        cuda: torch.cuda.

    Attributes:
        mark: Return a mark of what the device was told until now.
    """

    def __init__(self, device: Any, cuda: Any) -> None:
        self._device, self._cuda = device, cuda
        self._on_gpu = device.type != "cpu"
        self.mark: Callable[[], Any] = self._event if self._on_gpu else now_ns
        self._stream: Any = None
        self._spare: list[Any] = []
        self._base: tuple[Any, int] | None = None

    def open(self) -> None:
        """Make events beforehand, and tie the device's clock to the host's; call it on a drained device."""
        if self._on_gpu:
            self._stream = self._cuda.current_stream(self._device)
            self._spare = [self._new_event() for _ in range(SPARE_EVENTS)]
            # torch makes the driver's event where it is first recorded.
            for event in self._spare:
                event.record(self._stream)
            self._base = self._dated_event()

    def instants(self, marks: Sequence[Any]) -> list[int]:
        """Return the host instant (ns) of each mark since `open`; call it on a drained device."""
        if self._base is None:
            return list(marks)
        base, base_ns = self._base
        closing, closing_ns = self._dated_event()
        elapsed_ms = [base.elapsed_time(mark) for mark in marks]
        return host_instants(elapsed_ms, base.elapsed_time(closing), base_ns, closing_ns)

    def _event(self) -> Any:
        event = self._spare.pop() if self._spare else self._new_event()
        event.record(self._stream)
        return event

    def _new_event(self) -> Any:
        return self._cuda.Event(enable_timing=True)

    def _dated_event(self) -> tuple[Any, int]:
        """Record several events on a drained device; return the event dated best and its host instant (ns)."""
        tries = []
        for _ in range(DATING_TRIES):
            before_ns = now_ns()
            event = self._event()
            event.synchronize()
            # Its instant lies between the two readings.
            tries.append((now_ns() - before_ns, before_ns, event))
        wait_ns, before_ns, event = min(tries, key=itemgetter(0))
        return event, before_ns + wait_ns // 2


def host_instants(elapsed_ms: Sequence[float], closing_ms: float, base_ns: int, closing_ns: int) -> list[int]:
    """Return device events as host instants (ns), by a straight line through two events that both clocks have dated.

    Args:
        elapsed_ms: Time from the base event to each event, by the device's clock.
        closing_ms: Time from the base event to the closing event, by the device's clock.
        base_ns: Host instant of the base event.
        closing_ns: Host instant of the closing event.
    """
    # A device clock that stood still says nothing, and must not cost the pass.
    scale = (closing_ns - base_ns) / (closing_ms * NS_PER_MS) if closing_ms > 0 else 1.0
    return [base_ns + round(ms * NS_PER_MS * scale) for ms in elapsed_ms]
