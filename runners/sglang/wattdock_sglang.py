"""The SGLang backend: its own HTTP server, in a process of its own, asked for token ids.

Knows engine arguments (names come from SGLang's source) and their defaults. Imports no engine, so that the
runner can describe itself at once.
"""

from __future__ import annotations

from wattdock_runner.arguments import source_arguments
from wattdock_runner.backend import Backend

LEFT_OUT = (
    # wattdock sets these from other parts of an experiment, or needs them as they are.
    *("dtype", "host", "incremental_streaming_output", "model_path", "port", "served_model_name"),
    *("skip_tokenizer_init", "tokenizer_path", "trust_remote_code"),
    # Secrets and Python's objects do not belong into a study, and a runner has one engine on one host that speaks HTTP.
    *("admin_api_key", "api_key", "custom_sigquit_handler", "stat_loggers", "use_ray"),
    *("dp_size", "enable_dp_attention", "enable_http2", "encoder_only", "grpc_mode", "is_embedding"),
    *("dist_*", "disaggregation_*", "encoder_*", "gated_*", "grpc_*", "nnodes*", "node_*"),
    *("remote_instance_*", "sidecar*", "smg_*", "ssl_*", "watermark_*"),
)
# FLOPs, memory and revision of a result describe the model of the folder's config.json, and its safetensors.
OTHER_MODEL = "another model would run than the one that the result describes; leave it out, and give that as model"
OTHERS = {"custom_weight_loader", "json_model_override_args", "load_format", "lora_paths", "model_loader_extra_config"}
OTHERS |= {"revision", "speculative_draft_load_format", "speculative_draft_model_path"}
DRAFTS = "nobody would count the tokens that are drafted; leave it out, or take backend vllm"
REFUSED = dict.fromkeys(OTHERS, OTHER_MODEL) | {"speculative_algorithm": DRAFTS}
# A cached prompt is not computed: the energy per token would be that of another workload.
DEFAULTS: dict[str, object] = {"disable_radix_cache": True, "enable_metrics": True, "random_seed": 0}


class SglangBackend(Backend):
    """A model behind SGLang's server."""

    name = "sglang"
    framework = "sglang"
    framework_package = "sglang"
    packages: tuple[str, ...] = ("sglang", "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=0.5.17,<0.5.24"
    can_replicate = True

    engine_module = "wattdock_sglang_engine"
    # Source: the classes of sglang/srt/arg_groups/fields, of whose fields sglang/srt/server_args.py makes ServerArgs;
    # before 0.5.20 ServerArgs itself.
    engine_arguments = source_arguments(
        "sglang", "srt/arg_groups/fields/*.py", left_out=LEFT_OUT, refused=REFUSED
    ) or source_arguments("sglang", "srt/server_args.py", "ServerArgs", left_out=LEFT_OUT, refused=REFUSED)
