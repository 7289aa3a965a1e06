"""What each step of vLLM's engine computed, as its scheduler planned it. Imports no vLLM."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from wattdock_runner.clock import now_ns
from wattdock_runner.recorder import Step

if TYPE_CHECKING:
    from collections.abc import Iterator


class StepWatch:
    """Sees each batch that comes back to the scheduler of an engine core in this process.

    With async scheduling vLLM submits a batch while the batch before it is computed, so that a call of its `step` waits
    for a batch of an earlier call.

    Args:
        core: vLLM's `EngineCore`.
        knows_context: Whether all layers read the whole context, and the scheduler plans no token that may be dropped.
    """

    def __init__(self, core: Any, *, knows_context: bool) -> None:
        self._core, self._knows_context = core, knows_context
        self._start_ns = 0
        self._computed: deque[Any] = deque(maxlen=1)
        self._watch(core.scheduler)

    def _watch(self, scheduler: Any) -> None:
        update, keep = scheduler.update_from_output, self._computed.append

        def watched(batch: Any, output: Any) -> Any:
            # A batch may come back after all its requests have ended, even in the next pass.
            if not scheduler.requests.keys().isdisjoint(batch.num_scheduled_tokens):
                keep(batch)
            return update(batch, output)

        scheduler.update_from_output = watched

    def open(self) -> None:
        """Begin a pass."""
        self._start_ns = 0
        self._computed.clear()

    def before_step(self) -> None:
        """Note that vLLM is about to step."""
        self._start_ns = self._start_ns or now_ns()

    def after_step(self, at_ns: int) -> Iterator[Step]:
        """Yield the step whose tokens vLLM returned at `at_ns`, if any."""
        if not self._computed:
            return
        batch = self._computed.pop()
        cached, tokens = batch.scheduled_cached_reqs, batch.total_num_scheduled_tokens
        # A sequence past its prefill has a token computed, and its drafts; all other tokens are of prompts.
        decoding = len(cached.num_output_tokens) - cached.num_output_tokens.count(0)
        drafts = sum(map(len, batch.scheduled_spec_decode_tokens.values()))
        earlier = sum(cached.num_computed_tokens) + sum(new.num_computed_tokens for new in batch.scheduled_new_reqs)
        context_tokens = earlier + tokens if self._knows_context else None
        sequences = len(batch.num_scheduled_tokens)
        yield Step(self._start_ns, at_ns, tokens - decoding - drafts, sequences, context_tokens)
        # The next batch is being computed already where one is in the queue and its requests live.
        self._start_ns = at_ns if self._core.batch_queue and self._core.scheduler.requests else 0
