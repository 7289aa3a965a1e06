"""What each step of vLLM's engine computed, as its scheduler planned it, and when the device did. Imports no vLLM."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from wattdock_runner.device_clock import DeviceClock
from wattdock_runner.recorder import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    # Begin and end of each batch that a worker computed in a pass, host instants (ns).
    Dates = list[tuple[int, int]]


class StepWatch:
    """Sees each batch that comes back to the scheduler of an engine core in this process.

    With async scheduling vLLM submits a batch while the batch before it is computed, so that a call of its `step` waits
    for a batch of an earlier call, and its tokens may have been there for as long as vLLM took to submit the next one.
    When a batch was computed is known to the workers, which see the same batches in the same order.

    Attributes:
        drafts: Tokens of the pass that were drafted, and accepted, as vLLM's own statistics count them.

    Args:
        core: vLLM's `EngineCore`.
        knows_context: Whether all layers read the whole context, and the scheduler plans no token that may be dropped.
    """

    def __init__(self, core: Any, *, knows_context: bool) -> None:
        self._core, self._knows_context = core, knows_context
        self._computed: Any = None
        # The number of the latest batch that came back, among those of the pass, and of each batch that became a step.
        self._number, self._numbers = -1, list[int]()
        self.drafts = (0, 0)
        update, observe = core.scheduler.update_from_output, core.scheduler.make_spec_decoding_stats

        def watched(batch: Any, output: Any) -> Any:
            if batch.total_num_scheduled_tokens:
                self._computed = batch
                self._number += 1
            return update(batch, output)

        def counted(*others: Any, **named: Any) -> Any:
            drafted, accepted = self.drafts
            self.drafts = drafted + named["num_draft_tokens"], accepted + named["num_accepted_tokens"]
            return observe(*others, **named)

        core.scheduler.update_from_output, core.scheduler.make_spec_decoding_stats = watched, counted

    def open(self) -> None:
        """Begin a pass; what an earlier one left in the queue is none of its batches."""
        # The second part of what vLLM queues is the scheduler's plan.
        plans = [queued[1] for queued in self._core.batch_queue or ()]
        left = [plan for plan in plans if plan.total_num_scheduled_tokens]
        self._computed, self._number, self._numbers = None, -1 - len(left), []
        self.drafts = (0, 0)

    def after_step(self, at_ns: int) -> Iterator[Step]:
        """Yield the step that came back before `at_ns`, if any, undated.

        A step may be all that vLLM computed for requests that had ended meanwhile: its tokens are none.
        """
        batch, self._computed = self._computed, None
        if batch is None or self._number < 0:
            return
        self._numbers.append(self._number)
        cached, tokens = batch.scheduled_cached_reqs, batch.total_num_scheduled_tokens
        # A sequence past its prefill has a token computed, and its drafts; all other tokens are of prompts.
        decoding = len(cached.num_output_tokens) - cached.num_output_tokens.count(0)
        drafts = sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        earlier = sum(cached.num_computed_tokens) + sum(new.num_computed_tokens for new in batch.scheduled_new_reqs)
        context_tokens = earlier + tokens if self._knows_context else None
        yield Step(at_ns, at_ns, tokens - decoding - drafts, len(batch.num_scheduled_tokens), context_tokens)

    def dated(self, steps: Sequence[Step], by_rank: Sequence[Dates]) -> list[Step]:
        """Return the steps of a pass as the devices dated them: from the first rank's begin to the last rank's end.

        Args:
            by_rank: What `BatchClock.dates` returned in each worker.
        """
        begins, ends = by_rank[0], by_rank[-1]
        return [
            step._replace(start_ns=begins[number][0], end_ns=ends[number][1])
            for step, number in zip(steps, self._numbers, strict=True)
        ]


class BatchClock:
    """Dates each batch in a worker of vLLM: from where its model begins to where its tokens are sampled.

    Args:
        runner: vLLM's model runner.
        device: The device that computes.
        cuda: torch.cuda; not needed on a CPU.
    """

    def __init__(self, runner: Any, device: Any, cuda: Any = None) -> None:
        self._clock = DeviceClock(device, cuda)
        mark, begins, ends = self._clock.mark, list[Any](), list[Any]()
        self._begins, self._ends = begins, ends
        # Input is prepared before the model runs; vLLM's second model runner does not tell them apart.
        first = "_model_forward" if hasattr(runner, "_model_forward") else "execute_model"
        compute, sample = getattr(runner, first), runner.sample_tokens

        @wraps(compute)
        def begun(*inputs: Any, **named: Any) -> Any:
            # A batch without tokens is never sampled: what began it is none.
            begins[len(ends) :] = [mark()]
            return compute(*inputs, **named)

        @wraps(sample)
        def ended(*inputs: Any, **named: Any) -> Any:
            output = sample(*inputs, **named)
            if len(ends) < len(begins):
                ends.append(mark())
            return output

        setattr(runner, first, begun)
        runner.sample_tokens = ended

    def open(self) -> None:
        """Begin a pass on a drained device."""
        self._begins.clear()
        self._ends.clear()
        self._clock.open()

    def dates(self) -> Dates:
        """Return begin and end of each batch of the pass; call it on a drained device."""
        instants = self._clock.instants([*self._begins, *self._ends])
        return list(zip(instants, instants[len(self._begins) :], strict=False))
