"""Bytes of weights and of cached values by the names that engines and checkpoints give their types. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.errors import ConfigError
from wattdock.inputs.estimate.architecture import UnknownArchitectureError

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float": 4.0, "fp8": 1.0}
BYTES |= {"fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "int8": 1.0}
# Four bits per weight and one scale of eight bits for 32 of them. Source: OCP Microscaling Formats specification, v1.0.
MXFP4_BYTES = (4 + 8 / 32) / 8
ZERO_POINT_BITS = 4
SCALE_BITS = 16


@dataclass(frozen=True)
class Precision:
    """Bytes per weight and per value.

    Attributes:
        layers: Of matrices inside layers.
        experts: Of experts' matrices.
        rest: Of every other weight.
        values: Of activations, and of keys and values unless an engine is told otherwise.
    """

    layers: float
    experts: float
    rest: float
    values: float

    def scaled(self, by: float) -> Precision:
        """Return the same with all weights larger by a factor."""
        return Precision(self.layers * by, self.experts * by, self.rest * by, self.values)


def bytes_of(dtype: str) -> float:
    """Return the bytes of one value.

    Raises:
        ConfigError: The type is not known.
    """
    try:
        return BYTES[dtype.removeprefix("torch.")]
    except KeyError as error:
        raise ConfigError(
            f"dtype {dtype!r} is not known; known are {', '.join(BYTES)}, and mxfp4 for weights"
        ) from error


def precision(dtype: str, quantization: Mapping[str, object]) -> Precision:
    """Return what a weight takes in a checkpoint.

    Args:
        dtype: Of what is not quantised.
        quantization: The config's `quantization_config`; empty for none.

    Raises:
        ConfigError: The type is not known.
        UnknownArchitectureError: How it is quantised is not known.
    """
    rest = bytes_of(dtype)
    method = quantization.get("quant_method")
    if not method:
        return Precision(rest, rest, rest, rest)
    if method == "mxfp4":
        return Precision(rest, MXFP4_BYTES, rest, rest)
    if method == "fp8":
        return Precision(1.0, 1.0, rest, rest)
    bits, group = quantization.get("bits"), quantization.get("group_size")
    if method in ("gptq", "awq") and isinstance(bits, int) and isinstance(group, int):
        each = (bits + (SCALE_BITS + ZERO_POINT_BITS) / group if group > 0 else bits) / 8
        return Precision(each, each, rest, rest)
    raise UnknownArchitectureError(f"weights quantised by {method!r} are only known from their files")
