"""Print what a real engine generates in the benchmarks' ways, and what becomes of what goes wrong inside it.

Runs in the backend's environment, not in pytest's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from vllm.v1.engine.exceptions import EngineDeadError

from wattdock_runner.recorder import PassRecorder
from wattdock_runner.serving import serve
from wattdock_runner.values import Arrival, LoadOrder, Prompt, RandomWeights, Workload

# A worker's process that logs an exception, as vLLM's do.
CHILD = """
import logging, sys
from wattdock_vllm_processes import report_to_parent
report_to_parent()
try:
    raise RuntimeError(sys.argv[1])
except RuntimeError:
    logging.getLogger("vllm.v1.executor").exception("failed")
"""


def quantise(worker: Any) -> None:
    """Give a worker's model a thousand weights of 8 bits and their scale."""
    import torch

    model = worker.model_runner.get_model()
    for name, values in (("narrow", torch.zeros(1000, dtype=torch.float8_e4m3fn)), ("scale", torch.ones(1))):
        model.register_parameter(name, torch.nn.Parameter(values, requires_grad=False))


class Silent:
    """A layer whose backend has no name, as vLLM's base class of backends has none."""

    def get_attn_backend(self) -> type[Silent]:
        """Return a backend."""
        return Silent

    @staticmethod
    def get_name() -> str:
        """Tell nothing."""
        raise NotImplementedError


def child_logs(message: str) -> None:
    """Let a process below this one log an exception."""
    subprocess.run([sys.executable, "-c", CHILD, message], check=True, stderr=subprocess.DEVNULL)


def passed(error: Exception | None = None, logged: str | None = None) -> list[str]:
    """Return class and words of what comes of a pass whose first step logs and raises this."""

    def step() -> NoReturn:
        if logged:
            child_logs(logged)
        raise error or AssertionError

    if error:
        engine.llm.step = step
    try:
        serve(engine, Workload(Arrival.BATCH, 1, 2), [Prompt((3, 4, 5))], PassRecorder())
    except Exception as failure:  # noqa: BLE001 - it is the result
        return [type(failure).__name__, str(failure)]
    finally:
        vars(engine.llm).pop("step", None)
    return []


def served(way: int) -> tuple[list[list[int]], list[int]]:
    """Return the ids of each request of a closed loop of two, and how long before the pass's end tokens came (ns)."""
    recorder = PassRecorder()
    prompts = [Prompt(tuple(5 + 7 * n + i for i in range(24))) for n in range(5)]
    backend.generate(Workload(Arrival.CLOSED, 2, 16, seed=way, return_token_ids=True), prompts, recorder)
    at_ns, _ = recorder.token_series()
    return [list(request.output_ids) for request in recorder.requests], [recorder.span.end_ns - at for at in at_ns]


order = LoadOrder(Path(sys.argv[1]), random_weights=RandomWeights(-0.5, 0.5, 1))
sys.path.append(str(Path(__file__).parents[3] / "benchmarks/runners/bare_vllm"))
bare: Any = import_module("wattdock_bare_vllm")
backend = bare.BareVllmBackend()
backend.load(order, lambda _: None)
engine = backend.engine
ways = [served(way) for way in (bare.Way.RUNNER, bare.Way.BARE)]


def told(name: str) -> list[Any]:
    return [facts[name] for facts in engine.llm.collective_rpc("wattdock_facts")]


found: Any = engine.llm.vllm_config.compilation_config
settings = [told("engine")[0]["settings"]]
found.cache_dir, found.local_cache_dir = "", "/cache/compiled/rank_0"
settings.append(told("engine")[0]["settings"])
layers = engine.llm.vllm_config.compilation_config.static_forward_context
attention = [told("attention")]
layers["silent"] = Silent()
attention.append(told("attention"))
del layers["silent"]
sizes = told("weight_bytes")
engine.llm.collective_rpc(quantise)
sizes += told("weight_bytes")
child_logs("CUDA out of memory, so a smaller one is tried")
passes = {
    "handled before": passed(RuntimeError("a plain one")),
    "assertion, memory": passed(AssertionError(), "CUDA out of memory"),
    "assertion, other": passed(AssertionError("no block"), "device-side assert"),
    "assertion": passed(AssertionError("no block")),
    "host memory": passed(MemoryError(), "device-side assert"),
    "afterwards": passed(),
    # It lives on, but takes nothing back that it was given.
    "death": passed(EngineDeadError()),
    "death, other": passed(EngineDeadError(), "device-side assert"),
}
backend.unload()
module: Any = import_module("wattdock_vllm_engine")
unstarted = module.refusal(module.fault_of(RuntimeError("lost")), {}, Exception("WorkerProc failed"))
start = [type(unstarted).__name__, str(unstarted), unstarted.cause]
told_all = {
    "settings": settings,
    "ways": ways,
    "attention": attention,
    "sizes": sizes,
    "passes": passes,
    "start": start,
}
sys.stdout.write("\n" + json.dumps(told_all))
