"""The TensorRT-LLM backend: streams of token ids from its LLM API, with continuous batching.

Imports no engine, so that the runner can describe itself at once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import Argument, json_ready, source_arguments
from wattdock_runner.backend import Backend
from wattdock_runner.values import Finding

if TYPE_CHECKING:
    from wattdock_runner.values import LoadedModel, LoadOrder, Report

LEFT_OUT = (
    # wattdock sets these from other parts of an experiment.
    *("dtype", "model", "pipeline_parallel_size", "skip_tokenizer_init", "tensor_parallel_size", "trust_remote_code"),
    # Texts are encoded outside the engine, the runner is offline, and a study file cannot hold Python objects.
    *("tokenizer", "tokenizer_mode", "custom_tokenizer", "revision", "tokenizer_revision"),
    *("postprocess_tokenizer_dir", "num_postprocess_workers", "batched_logits_processor", "checkpoint_loader"),
    # A runner has a single engine on a single host, with MPI.
    *("backend", "mpi_session", "orchestrator_type", "gpus_per_node", "env_overrides", "load_format"),
    *("otlp_traces_endpoint", "decoding_config"),
)
# model_kwargs changes values of config.json: FLOPs, memory and revision would be those of a model that did not run.
REFUSED = {
    "model_kwargs": "another model would run than the one that the result describes; write it into a folder's "
    "config.json and give that as model.path",
    "speculative_config": "nobody would check a draft model's weights, nor count its work; leave it out",
}
OTHER_NAMES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}
ADDED = {"tp_size": Argument((int,)), "pp_size": Argument((int,))}
ADDED |= {name: Argument((dict, type(None)), refused=why) for name, why in REFUSED.items()}
# Read when TensorRT-LLM is imported and when MPI starts. No usage reports while measuring. MPI finds its own processes
# over loopback, the only network that a runner's container has, where a user without a name may be root.
ENVIRONMENT = {
    "TRTLLM_NO_USAGE_STATS": "1",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
NEVER_RUN = "this runner has been run with a stand-in only, never yet with the real TensorRT-LLM"
FIRST_RUN = "docs/tensorrt.md has the ten minutes that the first person with its image is asked for"


def engine_settings(order: LoadOrder, dtype: str) -> dict[str, Any]:
    """Return all arguments of TensorRT-LLM's `LLM`."""
    engine_args: dict[str, Any] = dict(order.engine_args)
    return {
        "tensor_parallel_size": engine_args.pop("tp_size", 1),
        "pipeline_parallel_size": engine_args.pop("pp_size", 1),
        **engine_args,
        # A cached prompt is not computed: the energy per token would be that of another workload.
        "kv_cache_config": {"enable_block_reuse": False, **(engine_args.get("kv_cache_config") or {})},
        "model": str(order.model_path),
        "dtype": dtype,
        "trust_remote_code": order.trust_remote_code,
        # Texts are encoded before a pass and decoded after it; the engine sees ids only.
        "skip_tokenizer_init": True,
    }


def effective_engine_args(args: Any) -> dict[str, Any]:
    """Return every engine argument as TensorRT-LLM holds it after its checks, JSON-ready.

    Workers do not report what they make of an argument without a value.
    """
    names = sorted(TensorrtBackend.engine_arguments or ())
    return {name: json_ready(getattr(args, OTHER_NAMES.get(name, name), None)) for name in names}


class TensorrtBackend(Backend):
    """A model in a TensorRT-LLM engine."""

    name = "tensorrt"
    framework = "tensorrt-llm"
    framework_package = "tensorrt-llm"
    packages: tuple[str, ...] = ("tensorrt-llm", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=1.2,<1.3"
    caveats = (Finding("tensorrt runner", "warn", NEVER_RUN, FIRST_RUN),)

    engine_module = "wattdock_tensorrt_engine"
    # Source: class TorchLlmArgs in tensorrt_llm/llmapi/llm_args.py.
    engine_arguments = source_arguments(
        "tensorrt_llm", "llmapi/llm_args.py", "TorchLlmArgs", left_out=LEFT_OUT, refused={}, added=ADDED
    )

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Start an engine with the model on the order's GPUs."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        return super().load(order, report)
