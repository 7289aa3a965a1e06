"""Date each step of `generate`, and count new tokens; pure but for `StepClock`. Imports no torch."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from wattdock_runner.device_clock import DeviceClock
from wattdock_runner.recorder import Step

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from wattdock_runner.recorder import PassRecorder


class StepClock:
    """Marks the instant of each forward pass of a model, which is a step of `generate`, and ends cancelled passes.

    A step's tokens are dated when the device had computed their scores.

    Args:
        device: The device that computes scores.
        cuda: torch.cuda; not needed on a CPU.

    Attributes:
        step_tokens: Number of tokens of each further step of the current batch, for heartbeats.
    """

    def __init__(self, recorder: PassRecorder, device: Any, cuda: Any = None) -> None:
        self.step_tokens: Iterator[int] = iter(())
        self._recorder = recorder
        self._clock = DeviceClock(device, cuda)
        self._marks: list[Any] = []

    def open(self) -> None:
        """Begin a pass on a drained device."""
        self._clock.open()

    @contextmanager
    def watching(self, model: Any) -> Iterator[None]:
        """Mark the forward passes of `model`, which must not be compiled, inside the context.

        A wrapper is cheapest: a forward hook doubles the cost of a mark, and a logits processor costs several times as
        much, since transformers looks up its signature in each step.
        """
        forward, instance_forward = model.forward, vars(model).get("forward")
        # Looked up once: inside a step, between the kernels of a model, every look-up is cold.
        recorder, check_cancelled = self._recorder, self._recorder.check_cancelled
        mark, keep = self._clock.mark, self._marks.append

        @wraps(forward)
        def marked(*inputs: Any, **named: Any) -> Any:
            output = forward(*inputs, **named)
            check_cancelled()
            keep(mark())
            recorder.progress.output_tokens += next(self.step_tokens, 0)
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
        return self._clock.instants(self._marks)


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
