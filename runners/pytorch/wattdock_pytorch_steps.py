"""Know when each step of `generate` produced its tokens, without making host or device wait; and count them.

`StepClock` needs torch only on an accelerator; the functions are pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock_runner.clock import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wattdock_runner.recorder import PassRecorder

NS_PER_MS = 1_000_000
# A device event may disagree with the host by its resolution and the host's own jitter, and by clock drift.
DISAGREEMENT_NS = 2 * NS_PER_MS
DISAGREEMENT_SHARE = 1e-3


class StepClock:
    """A logits processor that changes no score: it marks the instant of each step and ends cancelled passes.

    On an accelerator a mark is an event on the device's own stream, resolved after the pass, so that a step's tokens
    are dated when the device had computed their scores, and the host never waits for it.

    Args:
        device: Where scores are computed.
    """

    def __init__(self, recorder: PassRecorder, device: Any) -> None:
        self._recorder = recorder
        self._device = device
        self._on_device = device.type != "cpu"
        self._marks: list[Any] = []
        self._mark: Callable[[], Any] = self._event if self._on_device else now_ns
        self._base: tuple[Any, int] | None = None

    def open(self) -> None:
        """Tie the device's clock to the host's; call it on a drained device."""
        if self._on_device:
            self._base = self._dated_event()

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002 - the signature is transformers'
        """Mark one step of a batch of `len(scores)` sequences and return `scores` as they are."""
        recorder = self._recorder
        recorder.check_cancelled()
        self._marks.append(self._mark())
        recorder.progress(
            output_tokens=recorder.tokens_so_far + len(scores), requests_finished=recorder.requests_finished
        )
        return scores

    def __len__(self) -> int:
        return len(self._marks)

    def instants(self) -> list[int]:
        """Return the host instant (ns) of every step so far; call it on a drained device.

        Raises:
            RuntimeError: Device and host disagree about how long the pass took.
        """
        if self._base is None:
            return list(self._marks)
        base, base_ns = self._base
        closing, closing_ns = self._dated_event()
        elapsed_ms = [base.elapsed_time(mark) for mark in self._marks]
        return host_instants(elapsed_ms, base.elapsed_time(closing), base_ns, closing_ns)

    def _event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _dated_event(self) -> tuple[Any, int]:
        """Record an event on a drained device and wait for it; its instant lies between the two host readings."""
        before_ns = now_ns()
        event = self._event()
        event.synchronize()
        return event, (before_ns + now_ns()) // 2


def host_instants(elapsed_ms: Sequence[float], closing_ms: float, base_ns: int, closing_ns: int) -> list[int]:
    """Return device events as host instants (ns), by a straight line through two events that both clocks dated.

    Args:
        elapsed_ms: Of each event since the base event, by the device's clock.
        closing_ms: Of the closing event since the base event, by the device's clock.
        base_ns: Host instant of the base event.
        closing_ns: Host instant of the closing event.

    Raises:
        RuntimeError: The clocks disagree by more than jitter and drift explain.
    """
    host_ns, device_ns = closing_ns - base_ns, closing_ms * NS_PER_MS
    if abs(host_ns - device_ns) > DISAGREEMENT_NS + DISAGREEMENT_SHARE * host_ns:
        raise RuntimeError(f"the pass took {host_ns} ns by the host's clock and {device_ns:.0f} ns by the GPU's")
    scale = host_ns / device_ns
    return [base_ns + round(ms * NS_PER_MS * scale) for ms in elapsed_ms]


def output_length(ids: Sequence[int], eos_ids: Collection[int], limit: int) -> int:
    """Return how many of one sequence's new ids were really generated for it.

    The first end-of-sequence id counts; what a static batch computed after it, or after `limit`, does not.
    """
    ends = (position + 1 for position, token in enumerate(ids) if token in eos_ids)
    return min(limit, next(ends, len(ids)))
