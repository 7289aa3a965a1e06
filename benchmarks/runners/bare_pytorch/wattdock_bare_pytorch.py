"""The PyTorch runner, and beside it a bare loop over the same loaded model; for benchmarks only."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPO = Path(__file__).resolve().parents[3]
sys.path += [str(REPO / "runners/pytorch"), str(REPO / "benchmarks")]

from arms import Way, report_bare  # noqa: E402
from wattdock_pytorch import PyTorchBackend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wattdock_pytorch_engine import PyTorchEngine

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import Prompt, Workload

PLANTED = 0.01


class BarePyTorchBackend(PyTorchBackend):
    """Serves a pass as its workload's seed says; see `Way`."""

    name = "bare_pytorch"

    def __init__(self) -> None:
        super().__init__()
        self._step_ns = 0.0

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run one pass as the PyTorch runner does, or bare."""
        if workload.seed == Way.RUNNER or self.engine is None:
            super().generate(workload, prompts, recorder)
        elif workload.seed == Way.SLOWED:
            with slowed(self.engine.model, PLANTED * self._step_ns):
                run_bare(self.engine, workload, prompts, recorder)
        else:
            self._step_ns = run_bare(self.engine, workload, prompts, recorder)


@contextmanager
def slowed(model: Any, busy_ns: float) -> Iterator[None]:
    """Keep the host busy for `busy_ns` after each forward pass."""
    forward = model.forward

    @wraps(forward)
    def slow(*inputs: Any, **named: Any) -> Any:
        output = forward(*inputs, **named)
        until_ns = time.perf_counter_ns() + busy_ns
        while time.perf_counter_ns() < until_ns:
            pass
        return output

    model.forward = slow
    try:
        yield
    finally:
        del model.forward


def run_bare(engine: PyTorchEngine, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> float:
    """Run one batch after the other through transformers' `generate`, as the runner sets it; return a step's time (ns).

    Prompts are of one length. The device's clock is dated before the span and its spare events are kept until after
    it, as by the runner: both ways begin on a GPU that has just been at work, in a process that holds as much.
    """
    import torch
    from wattdock_pytorch_engine import generation_config
    from wattdock_pytorch_steps import StepClock

    settings = generation_config(engine, workload, workload.max_output_tokens)
    everything = torch.tensor([prompt.content for prompt in prompts])
    batches = everything.split(workload.in_flight)
    outputs = []
    engine.drain()
    clock = StepClock(recorder, engine.devices[0])
    clock.open()
    recorder.open()
    with torch.inference_mode():
        for batch in batches:
            ids = batch.to(engine.devices[0])
            mask = torch.ones_like(ids)
            outputs.append(engine.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings))
    engine.drain()
    recorder.close()
    del clock
    answers = [ids[everything.shape[1] :] for output in outputs for ids in output.tolist()]
    report_bare(recorder, prompts, [len(ids) for ids in answers], answers)
    return (recorder.span.end_ns - recorder.span.start_ns) / (len(batches) * workload.max_output_tokens)
