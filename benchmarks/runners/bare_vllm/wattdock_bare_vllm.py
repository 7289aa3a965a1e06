"""The vLLM runner, and beside it a bare loop over the same live engine; for benchmarks only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

REPO = Path(__file__).resolve().parents[3]
sys.path += [str(REPO / "runners/vllm"), str(REPO / "benchmarks")]

from arms import Way, report_bare  # noqa: E402
from wattdock_vllm import VllmBackend  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_vllm_engine import VllmEngine

    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import Prompt, Workload


class BareVllmBackend(VllmBackend):
    """Serves a pass as its workload's seed says; see `Way`."""

    name = "bare_vllm"
    engine: VllmEngine | None = None

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Run one pass as the vLLM runner does, or bare."""
        if workload.seed == Way.RUNNER or self.engine is None:
            super().generate(workload, prompts, recorder)
        else:
            run_bare(self.engine, workload, prompts, recorder)


def run_bare(engine: VllmEngine, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
    """Keep `in_flight` requests in the engine until none is left; all prompts are token ids."""
    from wattdock_vllm_engine import sampling_params

    sampling = sampling_params(workload, 0, workload.max_output_tokens, ())
    given = [{"type": "token", "prompt_token_ids": list(prompt.content)} for prompt in prompts]
    every: list[Any] | None = [] if workload.return_token_ids else None
    engine.drain()
    recorder.open()
    ends = loop(engine.llm, given, sampling, workload.in_flight, every)
    engine.drain()
    recorder.close()
    if others := {end.outputs[0].finish_reason for end in ends} - {"length"}:
        raise RuntimeError(f"a bare pass counts on answers of full length, and some ended by {others}")
    counts = [workload.max_output_tokens] * len(ends)
    report_bare(recorder, prompts, counts, None if every is None else ids_of(every, len(prompts)))


def loop(engine: Any, prompts: Sequence[Any], sampling: Any, in_flight: int, every: list[Any] | None) -> list[Any]:
    """Return the last output of each request; where `every` is a list, put all of them there."""
    ends: list[Any] = []
    added = 0
    while len(ends) < len(prompts):
        while added - len(ends) < in_flight and added < len(prompts):
            engine.add_request(f"bare-{added}", prompts[added], sampling)
            added += 1
        outputs = engine.step()
        ends += [output for output in outputs if output.finished]
        if every is not None:
            every += outputs
    return ends


def ids_of(outputs: Sequence[Any], prompts: int) -> list[list[int]]:
    """Return the ids of each request, put together from the engine's outputs."""
    ids: list[list[int]] = [[] for _ in range(prompts)]
    for output in outputs:
        ids[int(output.request_id.removeprefix("bare-"))].extend(output.outputs[0].token_ids)
    return ids
