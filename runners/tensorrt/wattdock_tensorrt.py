"""The TensorRT-LLM backend: its LLM API, asked for streams of token ids, with continuous batching.

This file imports no engine, so that the runner can say what it is at once; the work is in its siblings.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wattdock_tensorrt_arguments import OURS, engine_arguments

from wattdock_runner.backend import Arrival, Finding
from wattdock_runner.clock import now_ns
from wattdock_runner.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_tensorrt_load import TensorrtModel

    from wattdock_runner.arguments import Argument
    from wattdock_runner.backend import LoadedModel, LoadOrder, Prompt, Workload
    from wattdock_runner.recorder import PassRecorder

NEVER_RUN = "this runner has been run with a stand-in only, never yet with the real TensorRT-LLM"
FIRST_RUN = "docs/tensorrt.md has the ten minutes that the first person with its image is asked for"


class TensorrtBackend:
    """One model in one TensorRT-LLM engine."""

    name = "tensorrt"
    framework = "tensorrt-llm"
    framework_package = "tensorrt-llm"
    packages: tuple[str, ...] = ("tensorrt-llm", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=1.2,<1.4"
    arrivals: tuple[Arrival, ...] = (Arrival.BATCH, Arrival.CLOSED, Arrival.POISSON, Arrival.SINGLE)
    can_replicate = False

    def __init__(self) -> None:
        self._model: TensorrtModel | None = None

    @cached_property
    def engine_arguments(self) -> Mapping[str, Argument] | None:
        """The installed TensorRT-LLM's own arguments, but for those that wattdock sets; None without it."""
        return engine_arguments()

    def load(self, order: LoadOrder, report: Callable[[str, float | None], None]) -> LoadedModel:
        """Start an engine with the model on the GPUs that the order names."""
        start_ns = now_ns()
        if find_spec("tensorrt_llm") is None:
            raise WrongState("TensorRT-LLM is not installed here; run the backend in its image")
        report("importing tensorrt_llm", None)
        from wattdock_tensorrt_load import load_model

        self._model, loaded = load_model(order, report, start_ns)
        return loaded

    def generate(self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder) -> None:
        """Feed requests to the engine as they arrive until the pass's minima are met."""
        if self._model is None:
            raise WrongState("no model is loaded")
        from wattdock_tensorrt_pass import run_pass

        run_pass(self._model, workload, prompts, recorder)

    def diagnose(self) -> Sequence[Finding]:
        """Say how far this runner is proven, and whether the installed TensorRT-LLM has all that it sets."""
        proven = Finding("tensorrt runner", "warn", NEVER_RUN, FIRST_RUN)
        arguments = engine_arguments(())
        if arguments is None:
            return [proven, Finding("tensorrt-llm source", "fail", "cannot be found", "run the backend in its image")]
        if lacking := sorted(OURS - arguments.keys()):
            advice = f"use a version within {self.supported_versions}"
            return [proven, Finding("tensorrt-llm arguments", "fail", f"lacks {', '.join(lacking)}", advice)]
        return [proven, Finding("tensorrt-llm arguments", "ok", str(len(arguments)))]

    def unload(self) -> None:
        """Stop the engine and its processes, and give the memory back."""
        model, self._model = self._model, None
        # A runner that never loaded must not import the engine only to stop.
        if model is not None:
            sys.modules["wattdock_tensorrt_load"].stop_engine(model)
