"""Read the names and types of vLLM's engine arguments from its source, without importing it.

Importing vLLM takes seconds and loads torch, and a runner must answer at once.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument

if TYPE_CHECKING:
    from collections.abc import Mapping

# Set by wattdock itself, from what stands elsewhere in an experiment.
OURS = {"dtype", "model", "model_loader_extra_config", "skip_tokenizer_init", "trust_remote_code"}
# The runner is offline and is given no secret, which would stand in every result.
OURS |= {"hf_token", "worker_extension_cls"}
# Several engines, or several machines: one runner is one engine on one host.
ELSEWHERE = ("data_parallel", "master_", "nnodes", "node_rank", "_")
# Another model than the folder's config.json describes: FLOPs, memory and revision would be of one that did not run.
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
JSON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (float,),
    "int": (int,),
    "list": (list,),
    "None": (type(None),),
    "set": (list,),
    "str": (str,),
    "tuple": (list,),
}
ANY_JSON: tuple[type, ...] = (bool, dict, float, int, list, str, type(None))


def engine_arguments() -> dict[str, Argument] | None:
    """Return the arguments that are not wattdock's own, some of them refused; None where no vLLM is installed.

    Source: class EngineArgs in vllm/engine/arg_utils.py.
    """
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    return arguments_in(source.read_text(encoding="utf-8"))


def arguments_in(source: str) -> dict[str, Argument]:
    """Return the annotated fields of class EngineArgs in `source`; pure."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    fields = next(node for node in classes if node.name == "EngineArgs").body
    annotated = {
        field.target.id: field.annotation
        for field in fields
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    return {
        name: Argument(json_types(annotation), refused=REFUSED.get(name, ""))
        for name, annotation in annotated.items()
        if name not in OURS and not name.startswith(ELSEWHERE)
    }


def json_types(annotation: ast.expr) -> tuple[type, ...]:
    """Return what JSON may bring for an annotation; anything, where only vLLM can judge."""
    if isinstance(annotation, ast.BinOp):
        left, right = json_types(annotation.left), json_types(annotation.right)
        return tuple(dict.fromkeys(left + right))
    if isinstance(annotation, ast.Subscript):
        return json_types(annotation.value)
    name = str(annotation.value) if isinstance(annotation, ast.Constant) else getattr(annotation, "id", "")
    return JSON_TYPES.get(name, ANY_JSON)


def defaults_for(given: Mapping[str, object], *, on_gpu: bool, kv_cache_is_set: bool) -> dict[str, object]:
    """Return wattdock's defaults for what was not given.

    Args:
        kv_cache_is_set: Whether the environment sizes the KV cache of a CPU engine.
    """
    # A cached prompt is not computed: energy per token would be that of another workload.
    chosen: dict[str, object] = {"enable_prefix_caching": False, "disable_log_stats": True}
    if not on_gpu:
        # Compiling for a CPU takes half a minute and a C++ compiler, which a fresh machine may lack.
        chosen["enforce_eager"] = True
        if not kv_cache_is_set:
            chosen["kv_cache_memory_bytes"] = CPU_KV_CACHE_BYTES
    return {name: value for name, value in chosen.items() if name not in given}


# vLLM's own choice is nearly all memory that it believes to be free.
CPU_KV_CACHE_BYTES = 1 << 31
