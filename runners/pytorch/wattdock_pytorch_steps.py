"""Date each step of `generate` without making host or device wait, and count new tokens; pure but for `StepClock`."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from wattdock_runner.clock import now_ns
from wattdock_runner.recorder import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from wattdock_runner.recorder import PassRecorder

NS_PER_MS = 1_000_000
# The host may lose its core for milliseconds between an event and its reading, but hardly every time.
DATING_TRIES = 5
# Events made before a pass, so that a step only records one; later steps make their own.
SPARE_EVENTS = 2048


class StepClock:
    """Marks the instant of each forward pass of a model, which is a step of `generate`, and ends cancelled passes.

    On a GPU a mark is an event on the device's stream, resolved after the pass: a step's tokens are dated when the GPU
    had computed their scores, and the host never waits for the GPU.

    Args:
        device: The device that computes scores.

    Attributes:
        step_tokens: Number of tokens of each further step of the current batch, for heartbeats.
    """

    def __init__(self, recorder: PassRecorder, device: Any) -> None:
        self.step_tokens: Iterator[int] = iter(())
        self._recorder = recorder
        self._device = device
        self._on_device = device.type != "cpu"
        self._marks: list[Any] = []
        self._mark: Callable[[], Any] = self._event if self._on_device else now_ns
        self._stream: Any = None
        self._spare: list[Any] = []
        self._base: tuple[Any, int] | None = None

    def open(self) -> None:
        """Make the events of the first steps, and tie the device's clock to the host's; call it on a drained device."""
        if self._on_device:
            self._prepare()
            self._base = self._dated_event()

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Mark the forward passes of `model`, which must not be compiled, inside the context.

        A wrapper is cheapest: a forward hook doubles the cost of a mark, and a logits processor costs several times as
        much, since transformers looks up its signature in each step.
        """
        forward, instance_forward = model.forward, vars(model).get("forward")
        # Looked up once: inside a step, between the kernels of a model, every look-up is cold.
        recorder, check_cancelled = self._recorder, self._recorder.check_cancelled
        mark, keep = self._mark, self._marks.append

        @wraps(forward)
        def marked(*inputs: Any, **named: Any) -> Any:
            output = forward(*inputs, **named)
            check_cancelled()
            keep(mark())
            recorder.tokens_so_far += next(self.step_tokens, 0)
            return output

        model.forward = marked
        try:
            yield
        finally:
            del model.forward
            # accelerate sets a wrapper on the instance of a model that it spreads over devices.
            if instance_forward is not None:
                model.forward = instance_forward

    def __len__(self) -> int:
        return len(self._marks)

    def instants(self) -> list[int]:
        """Return the host instant (ns) of every step so far; call it on a drained device."""
        if self._base is None:
            return list(self._marks)
        base, base_ns = self._base
        closing, closing_ns = self._dated_event()
        closing_ms = base.elapsed_time(closing)
        elapsed_ms = [base.elapsed_time(mark) for mark in self._marks]
        return host_instants(elapsed_ms, closing_ms, base_ns, closing_ns)

    def _prepare(self) -> None:
        import torch

        self._stream = torch.cuda.current_stream(self._device)
        self._spare = [_new_event() for _ in range(SPARE_EVENTS)]
        # torch makes the driver's event where it is first recorded.
        for event in self._spare:
            event.record(self._stream)

    def _event(self) -> Any:
        event = self._spare.pop() if self._spare else _new_event()
        event.record(self._stream)
        return event

    def _dated_event(self) -> tuple[Any, int]:
        """Record several events on a drained device; return the event dated best and its host instant (ns)."""
        tries = [self._bracketed_event() for _ in range(DATING_TRIES)]
        event, before_ns, after_ns = min(tries, key=lambda tried: tried[2] - tried[1])
        return event, (before_ns + after_ns) // 2

    def _bracketed_event(self) -> tuple[Any, int, int]:
        """Record an event and wait for it; its instant lies between the two host readings (ns)."""
        before_ns = now_ns()
        event = self._event()
        event.synchronize()
        return event, before_ns, now_ns()


def _new_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)


def host_instants(elapsed_ms: Sequence[float], closing_ms: float, base_ns: int, closing_ns: int) -> list[int]:
    """Return device events as host instants (ns), by a straight line through two events that both clocks have dated.

    Args:
        elapsed_ms: Of each event since the base event, by the device's clock.
        closing_ms: Of the closing event since the base event, by the device's clock.
        base_ns: Host instant of the base event.
        closing_ns: Host instant of the closing event.
    """
    # A device clock that stood still says nothing, and must not cost the pass.
    scale = (closing_ns - base_ns) / (closing_ms * NS_PER_MS) if closing_ms > 0 else 1.0
    return [base_ns + round(ms * NS_PER_MS * scale) for ms in elapsed_ms]


def steps_of_batch(
    start_ns: int, ends_ns: Sequence[int], *, prompt_tokens: int, sequences: int, context_tokens: int | None
) -> Iterator[Step]:
    """Yield the steps of a static batch, which computes all its sequences to the end; the first one is its prefill.

    Args:
        start_ns: When the batch was submitted.
        ends_ns: When each step's tokens were there, ascending.
        context_tokens: Positions of each sequence in the first step, padding included; None is unknown.
    """
    for number, end_ns in enumerate(ends_ns):
        read = None if context_tokens is None else sequences * (context_tokens + number)
        yield Step(start_ns, end_ns, 0 if number else prompt_tokens, sequences, read)
        start_ns = end_ns


def output_length(ids: Sequence[int], eos_ids: Collection[int], limit: int) -> int:
    """Return the number of a sequence's new ids that count.

    The first end-of-sequence id counts; ids that a static batch computed after it, or after `limit`, do not.
    """
    ends = (position + 1 for position, token in enumerate(ids) if token in eos_ids)
    return min(limit, next(ends, len(ids)))
