"""The PyTorch runner, and beside it a bare loop over the same loaded model; for benchmarks only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

REPO = Path(__file__).resolve().parents[3]
sys.path += [str(REPO / "runners/pytorch"), str(REPO / "benchmarks")]

from arms import Way, report_bare  # noqa: E402
from wattdock_pytorch import PyTorchBackend  # noqa: E402

from wattdock_runner.errors import WrongState  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_pytorch_load import PyTorchModel

    from wattdock_runner.backend import Prompt, Workload
    from wattdock_runner.recorder import PassRecorder


class BarePyTorchBackend(PyTorchBackend):
    """Serves a pass as its workload's seed says; see `Way`."""

    name = "bare_pytorch"

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run one pass as the PyTorch runner does, or bare."""
        if workload.seed == Way.RUNNER:
            super().generate(workload, prompts, recorder)
        elif self._model is None:
            raise WrongState("no model is loaded")
        else:
            run_bare(self._model, workload, prompts, recorder)


def run_bare(loaded: PyTorchModel, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Run one batch after the other through transformers' `generate`, as the runner sets it; prompts of one length.

    The device's clock is dated before the span, as by the runner: both ways begin on a GPU that has just been at work.
    """
    import torch
    from wattdock_pytorch_pass import drain, generation_config
    from wattdock_pytorch_steps import StepClock

    settings = generation_config(loaded, workload, workload.max_output_tokens)
    everything = torch.tensor([prompt.content for prompt in prompts])
    batches = everything.split(workload.in_flight)
    outputs = []
    drain(loaded)
    StepClock(recorder, loaded.devices[0]).open()
    start_ns = recorder.open()
    with torch.inference_mode():
        for batch in batches:
            ids = batch.to(loaded.devices[0])
            mask = torch.ones_like(ids)
            outputs.append(loaded.model.generate(input_ids=ids, attention_mask=mask, generation_config=settings))
    drain(loaded)
    end_ns = recorder.close(drained=True)
    answers = [ids[everything.shape[1] :] for output in outputs for ids in output.tolist()]
    report_bare(recorder, prompts, [len(ids) for ids in answers], (start_ns, end_ns), answers)
