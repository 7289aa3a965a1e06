"""What multiplies a model's weights, read from stand-ins for torch's modules."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from wattdock_runner.linear import class_name, linear_facts, unpacked_warnings
from wattdock_runner.values import LoadOrder

if TYPE_CHECKING:
    from pathlib import Path

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1, "int32": 4}


def tensor(dtype: str, count: int, dims: int = 2, module: str = "torch") -> Any:
    """Return what stands for a tensor."""
    kind = type("Tensor", (), {"__module__": module})
    found: Any = kind()
    found.dtype, found.dim, found.numel = f"torch.{dtype}", lambda: dims, lambda: count
    found.element_size = lambda: WIDTHS[dtype]
    return found


def layer(kind: str, *parameters: Any, buffers: tuple[Any, ...] = ()) -> Any:
    """Return what stands for a module of a class."""
    found: Any = type(kind, (), {})()
    found._parameters = dict(enumerate((*parameters, None)))
    found._buffers = dict(enumerate(buffers))
    return found


def model(*layers: Any) -> Any:
    return SimpleNamespace(modules=lambda: layers)


NORM, EMBEDDING = layer("LlamaRMSNorm", tensor("float32", 10**9, dims=1)), layer("Embedding", tensor("float32", 10**9))
HEAD = layer("Linear", tensor("bfloat16", 100))


@pytest.mark.parametrize(
    ("decoder", "weights", "bits"),
    [
        (layer("Linear", tensor("float32", 1000)), ["float32", "bfloat16"], 32),
        (layer("Conv1D", tensor("float16", 1000)), ["float16", "bfloat16"], 16),
        (
            layer("FP8Linear", tensor("float8_e4m3fn", 1000), tensor("float32", 1)),
            ["float8_e4m3fn", "bfloat16", "float32"],
            8,
        ),
        (layer("MixtralExperts", tensor("bfloat16", 1000, dims=3)), ["bfloat16"], 16),
        (layer("Linear4bit", tensor("uint8", 500)), ["uint8", "bfloat16"], 16),
        (layer("WQLinear_GEMM", buffers=(tensor("int32", 125),)), ["int32", "bfloat16"], None),
        (layer("SomeNewLinear", tensor("float8_e4m3fn", 1000)), ["float8_e4m3fn", "bfloat16"], None),
        (layer("Linear", tensor("bfloat16", 1000, module="torchao.dtypes")), ["Tensor", "bfloat16"], None),
        (layer("MarlinFP8ScaledMMLinearKernel", tensor("int32", 250)), ["int32", "bfloat16"], 16),
        (layer("CutlassFP8ScaledMMLinearKernel", tensor("float8_e4m3fn", 1000)), ["float8_e4m3fn", "bfloat16"], 8),
        (layer("CPUFp8PerTensorScaledMMLinearKernel", tensor("uint8", 1000)), ["uint8", "bfloat16"], None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "_parameters") else "",
)
def test_the_width_of_operands_is_that_of_what_was_loaded(decoder: Any, weights: list[str], bits: int | None) -> None:
    """Kernels that are not known here, and types that say another than they hold, leave it unknown."""
    facts = linear_facts(model(NORM, EMBEDDING, decoder, HEAD), "bfloat16", class_name)
    assert (facts["linear_weights"], facts["linear_operands_bits"]) == (weights, bits)


@pytest.mark.parametrize(("kernel", "bits"), [("UnquantizedLinearMethod", 16), ("CPUFp8ScaledMMLinearKernel", None)])
def test_weights_that_a_kernel_keeps_to_itself_leave_quantised_models_unknown(kernel: str, bits: int | None) -> None:
    """vLLM on a CPU gives packed weights to its kernels, and leaves empty ones; the head is not all of the model."""
    facts = linear_facts(model(NORM, layer(kernel, tensor("bfloat16", 0, dims=1)), HEAD), "bfloat16")
    assert facts["linear_operands_bits"] == bits
    assert linear_facts(model(NORM, layer(kernel, tensor("bfloat16", 0))), "bfloat16") == {}


@pytest.mark.parametrize(
    ("config", "weights", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, ["bfloat16", "float32"], True),
        ({"quantization_config": {"quant_method": "fp8"}}, ["float8_e4m3fn", "bfloat16"], False),
        ({"quantization_config": {"quant_method": "fp8"}}, [], False),
        ({"quantization_config": None}, ["bfloat16"], False),
        ({}, ["bfloat16"], False),
    ],
)
def test_weights_that_were_unpacked_without_a_word_are_told(
    tmp_path: Path, config: dict[str, Any], weights: list[str], told: bool
) -> None:
    """A figure of FP8 that was measured in 16 bits would be taken for the model's own."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    facts = {"linear_weights": weights, "linear_operands_bits": 16} if weights else {}
    warnings = unpacked_warnings(LoadOrder(tmp_path), facts, "transformers")
    expected = "transformers unpacked the checkpoint's fp8 weights to bfloat16, float32: operands have 16 bits"
    assert warnings == ((expected,) if told else ())
