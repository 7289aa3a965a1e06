"""vLLM behind its own HTTP server (`vllm.serve`): started as `vllm serve` starts it, and asked for token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from wattdock_vllm_load import describe, plan_load, refusal, set_limits, stops
from wattdock_vllm_processes import ChildFaults, Fault
from wattdock_vllm_server import MODEL

from wattdock_runner.apis import VllmApi
from wattdock_runner.engine_server import loading
from wattdock_runner.errors import InvalidRequest, OutOfMemory, RunnerFault, WorkerDied
from wattdock_runner.served import ServedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_vllm_load import LoadPlan

    from wattdock_runner.engine_server import Server
    from wattdock_runner.values import LoadedModel, LoadOrder, Report

T = TypeVar("T")
# How vLLM's server says that its engine has died, and that it did not start.
ENGINE_DEAD, NOT_STARTED = "EngineDeadError", "Engine core initialization failed"
# What the process of its engine calls itself.
WORKERS = b"VLLM::EngineCore"
PROGRAM = Path(__file__).with_name("wattdock_vllm_server.py")
# Its engine is a process of its own, as wherever it serves; /collective_rpc asks the workers.
AS_SERVED = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1"}


class VllmServed(ServedEngine):
    """vLLM's server, whose processes report why they failed."""

    def __init__(self, server: Server, faults: ChildFaults, facts: Sequence[Mapping[str, Any]], plan: LoadPlan) -> None:
        super().__init__(server, VllmApi(MODEL, lambda work: stops(work, plan.ids.eos)), tokenizer=plan.tokenizer)
        set_limits(self, facts)
        self._faults = faults

    def guarded(self, doing: str, work: Callable[[], T]) -> T:
        """Return `work()`; name a lack of memory by what vLLM's processes report."""
        since = self._faults.reported()
        try:
            return super().guarded(doing, work)
        except Exception as error:
            fault = self._faults.cause(since)
            if fault and fault.is_memory:
                raise OutOfMemory(f"{doing}: {fault.reason}") from error
            # The server says it of any request, and ends by itself within seconds, or stays if it was told to.
            if ENGINE_DEAD in str(error):
                raise WorkerDied(f"{doing}: {died(fault)}") from error
            raise


def died(fault: Fault | None) -> str:
    """Return in words that an engine has died, and of what."""
    return f"a process of vLLM's engine died{f'; first reported: {fault}' if fault else ', and reported nothing'}"


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
            server.until(lambda: server.text("/version"), report, failure=NOT_STARTED, workers=WORKERS)
            facts = server.ask("/collective_rpc", {"method": "wattdock_facts"})["results"]
            return VllmServed(server, faults, facts, plan), describe(facts, order, plan)
    except RunnerFault as error:
        if fault := faults.cause():
            raise refusal(fault, settings, error) from error
        raise WorkerDied(died(None)) if NOT_STARTED in str(error) else error from error
