"""What the record of an engine's step costs inside vLLM's loop; needs no vLLM."""

from __future__ import annotations

import statistics
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from overheads import Row, aim

from wattdock.launch.runners import REPO

sys.path += [str(REPO / "runners/common"), str(REPO / "runners/vllm")]

from wattdock_vllm_steps import StepWatch

from wattdock_runner.clock import now_ns

if TYPE_CHECKING:
    from wattdock_runner.recorder import Step

SEQUENCES, STEPS, REPEATS, MOST_US = 512, 500, 20, 20


def step_record() -> list[Row]:
    """CPU time of all calls that record a step, where every sequence is past its prefill."""
    names = [str(number) for number in range(SEQUENCES)]
    cached = SimpleNamespace(
        num_output_tokens=[1_000 + number for number in range(SEQUENCES)],
        num_computed_tokens=[2_000 + number for number in range(SEQUENCES)],
    )
    batch = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(names, 1),
        total_num_scheduled_tokens=SEQUENCES,
        scheduled_cached_reqs=cached,
        scheduled_new_reqs=[],
        scheduled_spec_decode_tokens={},
    )
    scheduler: Any = SimpleNamespace(requests=dict.fromkeys(names), update_from_output=lambda *_: None)
    watch = StepWatch(SimpleNamespace(scheduler=scheduler, batch_queue=[batch]), knows_context=True)
    taken_us = sorted(recorded_us(watch, scheduler, batch) for _ in range(REPEATS))
    median_us = statistics.median(taken_us)
    name = f"record of an engine's step, {SEQUENCES} sequences (CPU time)"
    within = f"{taken_us[0]:.1f} … {taken_us[-1]:.1f} µs"
    return [Row(name, f"{median_us:.1f} µs", within, aim(MOST_US, "µs", median_us))]


def recorded_us(watch: StepWatch, scheduler: Any, batch: Any) -> float:
    """Return the mean CPU time of a step's record, in microseconds."""
    steps: list[Step] = []
    begun_ns = time.process_time_ns()
    for _ in range(STEPS):
        scheduler.update_from_output(batch, None)
        steps.extend(watch.after_step(now_ns()))
    return (time.process_time_ns() - begun_ns) / STEPS / 1e3
