"""Read back what an engine was made with from TensorRT-LLM's own validated arguments."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from wattdock_tensorrt_arguments import engine_arguments

from wattdock_runner.json_ready import json_ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_tensorrt_api import LlmArgs

    from wattdock_runner.backend import Gpu

OTHER_NAMES = {"tp_size": "tensor_parallel_size", "pp_size": "pipeline_parallel_size"}


def effective_engine_args(args: LlmArgs) -> dict[str, Any]:
    """Return every engine argument as TensorRT-LLM holds it after its own checks; None where it has none.

    JSON-ready. What its workers make of an argument that was left open, they do not report.
    """
    names = sorted(engine_arguments() or ())
    return {name: json_ready(getattr(args, OTHER_NAMES.get(name, name), None), _simpler) for name in names}


def _simpler(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    return value.model_dump() if hasattr(value, "model_dump") else value


def parallelism(args: LlmArgs, used: Sequence[Gpu], layers: int) -> dict[str, Any]:
    """Return how the model is split; `devices` holds layers by GPU UUID, and is empty where stages share them out.

    TensorRT-LLM's workers do not say which layers they have.
    """
    sizes = {"tensor": args.tensor_parallel_size, "pipeline": args.pipeline_parallel_size}
    split = {kind: size for kind, size in sizes.items() if size > 1}
    size_fields = {f"{kind}_parallel_size": size for kind, size in split.items()}
    whole = sizes["pipeline"] == 1
    return {"kind": "+".join(split) or "none", **size_fields, "devices": {g.uuid: layers for g in used if whole}}
