"""Read the names and types of TensorRT-LLM's arguments from its source, without importing it.

Importing it takes many seconds, loads torch and MPI, and asks the GPU what it is; a runner must answer at once.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument, unknown_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# Set by wattdock itself, from what stands elsewhere in an experiment.
OURS = {"backend", "dtype", "model", "pipeline_parallel_size", "skip_tokenizer_init", "tensor_parallel_size"}
OURS |= {"trust_remote_code"}
# Text is encoded outside the engine, the runner is offline, and Python objects cannot come from a file.
ELSEWHERE = {"tokenizer", "tokenizer_mode", "custom_tokenizer", "revision", "tokenizer_revision", "post_processor_hook"}
ELSEWHERE |= {"postprocess_tokenizer_dir", "num_postprocess_workers", "batched_logits_processor", "checkpoint_loader"}
# One runner is one engine on one host, with MPI; its engine folder is wattdock's own.
ELSEWHERE |= {"mpi_session", "orchestrator_type", "gpus_per_node", "env_overrides", "workspace", "enable_build_cache"}
ELSEWHERE |= {"load_format", "telemetry_config", "otlp_traces_endpoint", "decoding_config"}
# What wattdock adds: shorter names for the split, and which of the two engines.
BACKENDS = ("pytorch", "tensorrt")
# It changes single values of config.json: FLOPs, memory and revision would be of a model that did not run.
REFUSED = "another model would run than the one that the result describes; write it into a folder's config.json"
OWN = {"backend": Argument((str,), BACKENDS), "tp_size": Argument((int,)), "pp_size": Argument((int,))}
OWN |= {"model_kwargs": Argument((dict, type(None)), refused=f"{REFUSED} and give that as model.path")}

SOURCE = Path("llmapi", "llm_args.py")
ARGUMENT_CLASSES = ("TorchLlmArgs", "TrtLlmArgs")
NAMED_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "float": (float,),
    "int": (int,),
    "str": (str,),
    "None": (type(None),),
    "Dict": (dict,),
    "dict": (dict,),
    "List": (list,),
    "list": (list,),
    "NonNegativeFloat": (float,),
    "NonNegativeInt": (int,),
    "PositiveInt": (int,),
}
ANY_JSON: tuple[type, ...] = (bool, dict, float, int, list, str, type(None))


def engine_arguments(hidden: Collection[str] | None = None) -> dict[str, Argument] | None:
    """Return the arguments that a caller may set, or None where no TensorRT-LLM is installed.

    Args:
        hidden: Names to leave out; None for those that wattdock sets or cannot serve, with its own in their place.

    Source: classes TorchLlmArgs and TrtLlmArgs in tensorrt_llm/llmapi/llm_args.py.
    """
    classes = _installed_classes()
    if classes is None:
        return None
    fields = {name: types for kind in ARGUMENT_CLASSES for name, types in fields_of(kind, classes).items()}
    if hidden is not None:
        return {name: one for name, one in fields.items() if name not in hidden}
    return {name: one for name, one in fields.items() if name not in OURS | ELSEWHERE} | OWN


def require_known_cache_settings(given: Mapping[str, object]) -> None:
    """Accept only settings of the KV cache that the installed TensorRT-LLM has.

    Raises:
        InvalidRequest: Names the nearest one.
    """
    known = fields_of("KvCacheConfig", _installed_classes() or {})
    for name in given:
        if name not in known:
            raise unknown_name("setting in kv_cache_config", name, known)


def _installed_classes() -> dict[str, ast.ClassDef] | None:
    spec = find_spec("tensorrt_llm")
    if spec is None or not spec.submodule_search_locations:
        return None
    source = Path(spec.submodule_search_locations[0]) / SOURCE
    return classes_in(source.read_text(encoding="utf-8")) if source.is_file() else None


def classes_in(source: str) -> dict[str, ast.ClassDef]:
    """Return the top-level classes of `source` by name; pure."""
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}


def fields_of(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, Argument]:
    """Return the public annotated fields of a class, those of its bases in the same file included; pure.

    A class that is not there has none.
    """
    if name not in classes:
        return {}
    found: dict[str, Argument] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            found |= fields_of(base.id, classes)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
            found[node.target.id] = argument_for(node.annotation)
    return found


def argument_for(annotation: ast.expr) -> Argument:
    """Return what JSON may bring for an annotation; anything, where only TensorRT-LLM can judge."""
    types, literals = _alternatives(annotation)
    choices = tuple(literals) if literals and set(types) <= {str, type(None)} else ()
    return Argument(types, (*choices, None) if choices and type(None) in types else choices)


def _alternatives(annotation: ast.expr) -> tuple[tuple[type, ...], list[object]]:
    if isinstance(annotation, ast.BinOp):
        return _united([annotation.left, annotation.right])
    if isinstance(annotation, ast.Subscript):
        name = getattr(annotation.value, "id", "")
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name == "Literal":
            values = [one.value for one in inner if isinstance(one, ast.Constant)]
            return tuple(dict.fromkeys(type(value) for value in values)), list(values)
        if name == "Union":
            return _united(inner)
        if name == "Optional":
            return _united([*inner, ast.Constant(None)])
        return NAMED_TYPES.get(name, ANY_JSON), []
    name = str(annotation.value) if isinstance(annotation, ast.Constant) else getattr(annotation, "id", "")
    # Settings in groups are classes of their own, made from a mapping.
    return NAMED_TYPES.get(name, (dict,) if name.endswith("Config") else ANY_JSON), []


def _united(parts: list[ast.expr]) -> tuple[tuple[type, ...], list[object]]:
    found = [_alternatives(part) for part in parts]
    types = tuple(dict.fromkeys(kind for kinds, _ in found for kind in kinds))
    has_free_text = any(str in kinds and not values for kinds, values in found)
    return types, [] if has_free_text else [value for _, values in found for value in values]
