"""The TensorRT-LLM backend: streams of token ids from its LLM API, with continuous batching.

Imports no engine, so that the runner can describe itself at once.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument, source_fields
from wattdock_runner.backend import Backend, Finding
from wattdock_runner.errors import WrongState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock_tensorrt_engine import TensorrtEngine

    from wattdock_runner.backend import LoadedModel, LoadOrder, Report

# wattdock sets these from other parts of an experiment.
SET_BY_WATTDOCK = {
    "dtype",
    "model",
    "pipeline_parallel_size",
    "skip_tokenizer_init",
    "tensor_parallel_size",
    "trust_remote_code",
}
# Texts are encoded outside the engine, the runner is offline, and a study file cannot hold Python objects.
ELSEWHERE = {"tokenizer", "tokenizer_mode", "custom_tokenizer", "revision", "tokenizer_revision"}
ELSEWHERE |= {"postprocess_tokenizer_dir", "num_postprocess_workers", "batched_logits_processor", "checkpoint_loader"}
# A runner has a single engine on a single host, with MPI.
ELSEWHERE |= {"backend", "mpi_session", "orchestrator_type", "gpus_per_node", "env_overrides", "load_format"}
ELSEWHERE |= {"otlp_traces_endpoint", "decoding_config"}
# model_kwargs changes values of config.json: FLOPs, memory and revision would be those of a model that did not run.
REFUSED = "another model would run than the one that the result describes; write it into a folder's config.json"
ADDED = {"tp_size": Argument((int,)), "pp_size": Argument((int,))}
ADDED |= {"model_kwargs": Argument((dict, type(None)), refused=f"{REFUSED} and give that as model.path")}
NEVER_RUN = "this runner has been run with a stand-in only, never yet with the real TensorRT-LLM"
FIRST_RUN = "docs/tensorrt.md has the ten minutes that the first person with its image is asked for"


def engine_arguments() -> dict[str, Argument] | None:
    """Return the arguments that a caller may set, or None where TensorRT-LLM is not installed.

    Source: class TorchLlmArgs in tensorrt_llm/llmapi/llm_args.py.
    """
    fields = source_fields("tensorrt_llm", "llmapi/llm_args.py", "TorchLlmArgs")
    if fields is None:
        return None
    return {name: argument for name, argument in fields.items() if name not in SET_BY_WATTDOCK | ELSEWHERE} | ADDED


class TensorrtBackend(Backend):
    """A model in a TensorRT-LLM engine."""

    name = "tensorrt"
    framework = "tensorrt-llm"
    framework_package = "tensorrt-llm"
    packages: tuple[str, ...] = ("tensorrt-llm", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=1.2,<1.3"
    caveats = (Finding("tensorrt runner", "warn", NEVER_RUN, FIRST_RUN),)
    engine: TensorrtEngine | None = None

    @cached_property
    def engine_arguments(self) -> Mapping[str, Argument] | None:  # type: ignore[override]
        """Arguments of the installed TensorRT-LLM that wattdock does not set; None without TensorRT-LLM."""
        return engine_arguments()

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Start an engine with the model on the order's GPUs."""
        if find_spec("tensorrt_llm") is None:
            raise WrongState("TensorRT-LLM is not installed here; run the backend in its image")
        report("importing tensorrt_llm")
        from wattdock_tensorrt_engine import load_engine

        self.engine, loaded = load_engine(order, report)
        self.engine.drain()
        return loaded

    def unload(self) -> None:
        """Stop the engine and its processes, and give the memory back."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.stop()
