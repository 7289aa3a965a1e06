"""vLLM behind its own HTTP server (`vllm.serve`): started as `vllm serve` starts it, and asked for token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_vllm_engine import MORE_ROOM, describe, plan_load, refusal, set_limits, stops
from wattdock_vllm_processes import ChildFaults
from wattdock_vllm_server import MODEL

from wattdock_runner.engine_server import loading
from wattdock_runner.errors import CacheTooSmall, InvalidRequest, OutOfMemory, RunnerFault
from wattdock_runner.served import Api, Chunk, ServedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_vllm_engine import LoadPlan

    from wattdock_runner.backend import LoadedModel, LoadOrder, Report, Workload
    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.engine_server import Server

T = TypeVar("T")
PROGRAM = Path(__file__).with_name("wattdock_vllm_server.py")
# Its engine is a process of its own, as wherever it serves; /collective_rpc asks the workers.
AS_SERVED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"}


class VllmApi(Api):
    """vLLM's completions, which tell ids.

    Source: class CompletionRequest in vllm/entrypoints/openai/completion/protocol.py.
    """

    path = "/v1/completions"
    histograms = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    draft_counters = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
    # It looks for its engine each five seconds.
    dying_s = 7.0

    def __init__(self, eos_ids: Sequence[int]) -> None:
        self._eos_ids = eos_ids

    def body(self, workload: Workload, prompt: EncodedPrompt) -> dict[str, Any]:
        """Return a request for ids that leaves nothing to the server's or the checkpoint's defaults."""
        sampling = workload.sampling
        return {
            "model": MODEL,
            "prompt": prompt.ids,
            "max_tokens": prompt.max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **stops(workload, self._eos_ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": workload.seed + prompt.position if sampling.temperature > 0 else None,
        }

    def read(self, event: Mapping[str, Any]) -> Chunk:
        """Return the ids of an event; the last has the counts of tokens, and no ids."""
        if not event["choices"]:
            usage = event["usage"]
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            return Chunk(
                cached_prompt_tokens=cached,
                output_tokens=usage["completion_tokens"],
                prompt_tokens=usage["prompt_tokens"],
            )
        [choice] = event["choices"]
        return Chunk(choice.get("token_ids") or (), choice["finish_reason"])

    def server_times(self, grown: Mapping[str, float]) -> tuple[float | None, float | None]:
        """Return the pass's mean times by the server's clock.

        Raises:
            OutOfMemory: It stopped requests, and computed them again.
        """
        if stopped := grown["vllm:num_preemptions_total"]:
            raise CacheTooSmall(
                f"the KV cache could not hold what was in flight: vLLM stopped requests {stopped:.0f} time(s) and "
                f"computed them again; {MORE_ROOM}"
            )
        return super().server_times(grown)


class VllmServed(ServedEngine):
    """vLLM's server, whose processes report why they failed."""

    def __init__(self, server: Server, faults: ChildFaults, facts: Sequence[Mapping[str, Any]], plan: LoadPlan) -> None:
        super().__init__(server, VllmApi(plan.ids.eos), tokenizer=plan.tokenizer)
        set_limits(self, facts)
        self._faults = faults

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; name a lack of memory by what vLLM's processes report."""
        since = self._faults.reported()
        try:
            return super().guarded(doing, work)
        except Exception as error:
            if (fault := self._faults.cause(since)) and fault.is_memory:
                raise OutOfMemory(f"{doing}: {fault.reason}") from error
            raise


def load_engine(order: LoadOrder, report: Report) -> tuple[VllmServed, LoadedModel]:
    """Start the server, and return when it answers.

    Raises:
        WrongState, InvalidRequest, OutOfMemory: As without a server.
    """
    plan = plan_load(order, report)
    # It turns answers into text, as wherever it serves, if it has the model's tokenizer.
    settings = plan.settings | {"skip_tokenizer_init": plan.tokenizer is None}
    if order.engine_args.get("disable_log_stats"):
        raise InvalidRequest("disable_log_stats: vllm.serve reads the server's statistics; leave it out")
    settings["disable_log_stats"] = False
    faults = ChildFaults()
    report("starting the server")
    try:
        with loading(PROGRAM, json.dumps(settings), AS_SERVED) as server:
            server.until(lambda: server.is_up("/version"))
            facts = server.ask("/collective_rpc", {"method": "wattdock_facts"})["results"]
            return VllmServed(server, faults, facts, plan), describe(facts, order, plan)
    except RunnerFault as error:
        raise error if (fault := faults.cause()) is None else refusal(fault, settings, error) from error
