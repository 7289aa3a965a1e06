"""Make the file of facts about vLLM's source in each version: engine arguments' types, and names that the runner uses.

Nothing is imported.

pip download vllm==0.33.0 --no-deps && unzip vllm-0.33.0*.whl 'vllm/*.py' -d versions/0.33.0   # and so on
python tests/facts/vllm_source.py versions > tests/facts/vllm.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# What runners/vllm uses, by file and class of vLLM: "" is the module itself; what ends in brackets is called.
USED = {
    "__init__.py": {"": "SamplingParams"},
    "config/cache.py": {"CacheConfig": "block_size cache_dtype num_gpu_blocks"},
    "config/compilation.py": {"CompilationConfig": "static_forward_context"},
    "config/load.py": {"LoadConfig": "model_loader_extra_config"},
    "config/lora.py": {"LoRAConfig": "target_modules"},
    # And, from 0.27 on, ssu_algorithm.
    "config/mamba.py": {"MambaConfig": "backend enable_stochastic_rounding stochastic_rounding_philox_rounds"},
    "config/model.py": {
        "ModelConfig": "dtype get_num_layers() get_vocab_size() hf_text_config max_model_len multimodal_config "
        "quantization trust_remote_code"
    },
    "config/multimodal.py": {"MultiModalConfig": "limit_per_prompt"},
    "config/offload.py": {"OffloadConfig": "prefetch uva"},
    "config/parallel.py": {"ParallelConfig": "pipeline_parallel_size tensor_parallel_size"},
    "config/scheduler.py": {"SchedulerConfig": "async_scheduling max_num_batched_tokens max_num_seqs policy"},
    "config/speculative.py": {"SpeculativeConfig": "method model num_speculative_tokens"},
    "config/vllm.py": {
        "VllmConfig": "cache_config compilation_config lora_config mamba_config model_config offload_config "
        "parallel_config scheduler_config speculative_config"
    },
    "distributed/device_communicators/base_device_communicator.py": {"DeviceCommunicatorBase": "rank"},
    "distributed/device_communicators/cpu_communicator.py": {
        "_CPUSHMDistributed": "_init_cpu_shm() communicator group_name"
    },
    "distributed/parallel_state.py": {"": "cleanup_dist_env_and_memory()"},
    "engine/arg_utils.py": {"": "AsyncEngineArgs EngineArgs", "EngineArgs": "from_cli_args()"},
    "entrypoints/openai/completion/protocol.py": {
        "CompletionRequest": "frequency_penalty ignore_eos max_tokens min_p model presence_penalty prompt "
        "repetition_penalty return_token_ids seed stream stream_options temperature top_k top_p",
        "CompletionResponseStreamChoice": "finish_reason token_ids",
    },
    "envs.py": {
        "": "VLLM_CPU_KVCACHE_SPACE VLLM_ENABLE_V1_MULTIPROCESSING "
        "VLLM_NO_USAGE_STATS VLLM_RPC_BASE_PATH VLLM_SERVER_DEV_MODE VLLM_WORKER_MULTIPROC_METHOD"
    },
    "inputs/engine.py": {"TokensInput": "prompt_token_ids type"},
    "model_executor/layers/attention_layer_base.py": {"AttentionLayerBase": "get_attn_backend()"},
    "model_executor/model_loader/__init__.py": {"": "register_model_loader()"},
    "model_executor/model_loader/base_loader.py": {"BaseModelLoader": "download_model() load_config load_weights()"},
    "outputs.py": {
        "CompletionOutput": "finish_reason token_ids",
        "RequestOutput": "finished num_cached_tokens outputs request_id",
    },
    "platforms/__init__.py": {"": "current_platform"},
    "platforms/interface.py": {"Platform": "get_device_uuid() is_cpu() is_cuda()"},
    "sampling_params.py": {
        "RequestOutputKind": "DELTA",
        "SamplingParams": "detokenize ignore_eos max_tokens output_kind seed temperature top_k top_p",
    },
    "usage/usage_lib.py": {"UsageContext": "LLM_CLASS"},
    "v1/attention/backend.py": {"AttentionBackend": "get_name()"},
    "v1/core/block_pool.py": {"BlockPool": "get_num_free_blocks()"},
    "v1/core/kv_cache_manager.py": {"KVCacheManager": "block_pool enable_caching watermark_blocks"},
    "v1/core/sched/output.py": {
        "CachedRequestData": "num_computed_tokens num_output_tokens",
        "NewRequestData": "num_computed_tokens",
        "SchedulerOutput": "num_scheduled_tokens scheduled_cached_reqs scheduled_new_reqs "
        "scheduled_spec_decode_tokens total_num_scheduled_tokens",
    },
    "v1/core/sched/request_queue.py": {"RequestQueue": "__bool__() peek_request()"},
    "v1/core/sched/scheduler.py": {
        "Scheduler": "kv_cache_config kv_cache_manager requests running update_from_output() waiting"
    },
    "v1/engine/core.py": {"EngineCore": "batch_queue model_executor scheduler"},
    "v1/engine/core_client.py": {"InprocClient": "engine_core shutdown()"},
    "v1/engine/exceptions.py": {"": "EngineDeadError"},
    "v1/engine/llm_engine.py": {
        "LLMEngine": "abort_request() add_request() collective_rpc() engine_core from_engine_args() step() vllm_config"
    },
    "v1/executor/multiproc_executor.py": {"MultiprocExecutor": "is_failed"},
    "v1/kv_cache_interface.py": {
        "": "FullAttentionSpec",
        "KVCacheConfig": "kv_cache_groups num_blocks",
        "KVCacheGroupSpec": "kv_cache_spec",
    },
    "v1/request.py": {"Request": "num_preemptions num_tokens"},
    "v1/worker/gpu/model_runner.py": {"GPUModelRunner": "kv_cache_config"},
    "v1/worker/gpu_model_runner.py": {"GPUModelRunner": "kv_cache_config"},
    "v1/worker/worker_base.py": {"WorkerBase": "device model_config parallel_config rank vllm_config"},
}


def main() -> int:
    """Print the facts; return the exit status."""
    folders = sorted(Path(sys.argv[1]).glob("*/vllm"))
    typed = {folder.parent.name: arguments(read(folder / "engine/arg_utils.py")) for folder in folders}
    named = {folder.parent.name: names(folder, USED) for folder in folders}
    facts = {"versions": list(typed), "arguments": by_name(typed), "names": by_name(named)}
    sys.stdout.write(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    return 0


def read(file: Path) -> str:
    """Return a source; empty where this version has no such file."""
    return file.read_text(encoding="utf-8") if file.exists() else ""


def arguments(source: str) -> dict[str, str]:
    """Return the annotated fields of class EngineArgs; pure."""
    (kind,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"]
    fields = [node for node in kind.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {node.target.id: ast.unparse(node.annotation) for node in fields if isinstance(node.target, ast.Name)}


def used(by_file: dict[str, dict[str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield file, class and name of all that a runner uses."""
    for file, classes in by_file.items():
        for owner, wanted in classes.items():
            for name in wanted.split():
                yield file, owner, name


def key(file: str, owner: str, name: str) -> str:
    """Return what one name is called in the facts."""
    return f"{file} {owner}.{name}" if owner else f"{file} {name}"


def names(folder: Path, by_file: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return what each name that a runner uses is in the version in `folder`, without those that it lacks."""
    there = {file: members(read(folder / file)) for file in by_file}
    wanted = ((key(*item), there[item[0]].get(item[1], {}).get(item[2].removesuffix("()"))) for item in used(by_file))
    return {name: kind for name, kind in wanted if kind}


def members(source: str) -> dict[str, dict[str, str]]:
    """Return the names of a module, under "", and those of each of its classes, with what each is; pure."""
    module = ast.parse(source)
    classes = [node for node in statements(module.body) if isinstance(node, ast.ClassDef)]
    return {"": bound(module.body)} | {node.name: set_on_self(node) | bound(node.body) for node in classes}


def set_on_self(kind: ast.ClassDef) -> dict[str, str]:
    """Return what any method assigns to `self`."""
    stored = [node for node in ast.walk(kind) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr: "value" for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, with those under any `if`: vLLM imports lazily, and declares for type checkers."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from statements(node.body + node.orelse)


def bound(body: list[ast.stmt]) -> dict[str, str]:
    """Return the names that a body binds: each a value, a class or a function."""
    found = {}
    for node in statements(body):
        if isinstance(node, ast.FunctionDef):
            decorators = {ast.unparse(item) for item in node.decorator_list}
            found[node.name] = "value" if decorators & {"property", "cached_property"} else "function"
        elif isinstance(node, ast.ClassDef):
            found[node.name] = "class"
        elif isinstance(node, ast.ImportFrom):
            found |= {item.asname or item.name: "import" for item in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {item.id: "value" for item in targets if isinstance(item, ast.Name)}
    return found


def by_name(versions: dict[str, dict[str, str]]) -> dict[str, object]:
    """Return each name's kinds with the versions that have it so; pure."""
    everything = sorted({name for kinds in versions.values() for name in kinds})
    found: dict[str, dict[str, list[str]]] = {name: {} for name in everything}
    for version, kinds in versions.items():
        for name, kind in kinds.items():
            found[name].setdefault(kind, []).append(version)
    # Most are the same in all of them.
    everywhere = list(versions)
    return {
        name: {kind: "all" if has == everywhere else has for kind, has in kinds.items()}
        for name, kinds in found.items()
    }


def kinds_in(version: str, things: dict[str, Any]) -> dict[str, str]:
    """Return what each of the things of `by_name` is in one version."""
    return {
        name: kind for name, kinds in things.items() for kind, has in kinds.items() if has == "all" or version in has
    }


if __name__ == "__main__":
    sys.exit(main())
