"""What multiplies a loaded model's weights: their types and kernels, read from its modules. Torch is duck-typed.

A checkpoint's config says what was asked for: an engine may have unpacked quantised weights when it loaded them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wattdock_runner.values import LoadOrder

BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
# Classes of transformers, and kernels of vLLM, that multiply operands of 8 bits.
# Source: transformers/integrations/{finegrained_fp8,fbgemm_fp8}.py; vllm/model_executor/kernels/linear/scaled_mm.
EIGHT_BITS = re.compile(
    r"FP8Linear|FP8GroupedLinear|FP8Experts|FbgemmFp8\w+|(Cutlass|DeepGemm|FlashInfer|Triton|\w+WiseTorch|PerTensorTorch)"
    r"(FP8|Fp8|Int8)\w+"
)
# Kernels that unpack weights to the type of the activations.
# Source: bitsandbytes' Linear4bit; vllm/model_executor/kernels/linear/{mixed_precision,scaled_mm/marlin.py}.
UNPACKING = re.compile(r"Linear4bit|(Marlin|Machete|Exllama|Conch|TritonW4A16)\w*")


def class_name(module: Any) -> str | None:
    """Return a module's class; None for an embedding, which is looked up and not multiplied."""
    name = type(module).__name__
    return None if name == "Embedding" else name


def linear_facts(model: Any, dtype: str, kernel_of: Callable[[Any], str | None] = class_name) -> dict[str, object]:
    """Return effective engine arguments that say how a model's matrices are held and multiplied; empty without any.

    `linear_weights` are types, those of most bytes first; `linear_operands_bits` is the width of most bytes, None where
    it is unknown.

    Args:
        dtype: The dtype of activations.
        kernel_of: Returns what multiplies a module's matrices; None for a module that multiplies none.
    """
    weights, bits, is_known = Counter[str](), Counter[int | None](), True
    for module in model.modules():
        if (kernel := kernel_of(module)) is None:
            continue
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None:
                continue
            if not tensor.numel():
                # On a CPU, vLLM's kernels keep packed weights of their own and leave empty ones.
                is_known = is_known and kernel.startswith("Unquantized")
            elif tensor.dim() >= 2:
                size_bytes = tensor.numel() * tensor.element_size()
                # The tensors of torchao name the dtype that they stand for, not the dtype that they hold.
                is_packed = type(tensor).__module__.startswith("torchao")
                kind = type(tensor).__name__ if is_packed else str(tensor.dtype).removeprefix("torch.")
                weights[kind] += size_bytes
                operand = dtype if UNPACKING.fullmatch(kernel) else kind
                bits[8 if EIGHT_BITS.fullmatch(kernel) else BITS.get(operand)] += size_bytes
    if not weights:
        return {}
    return {
        "linear_weights": [name for name, _ in weights.most_common()],
        "linear_operands_bits": bits.most_common(1)[0][0] if is_known else None,
    }


def unpacked_warnings(order: LoadOrder, facts: Mapping[str, Any], engine: str) -> tuple[str, ...]:
    """Return a warning where a checkpoint is quantised and an engine holds its weights in whole types."""
    config = json.loads((order.model_path / "config.json").read_text(encoding="utf-8"))
    asked: Mapping[str, Any] = config.get("quantization_config") or {}
    kinds: Sequence[str] = facts.get("linear_weights", ())
    if not asked or not kinds or not BITS.keys() >= set(kinds):
        return ()
    method, bits, held = asked.get("quant_method"), facts["linear_operands_bits"], ", ".join(kinds)
    return (f"{engine} unpacked the checkpoint's {method} weights to {held}: operands have {bits} bits",)
