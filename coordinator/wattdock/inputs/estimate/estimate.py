"""One model on one engine: its architecture, what it needs on a GPU, and where it fits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattdock.config import Split
from wattdock.inputs.estimate.architecture import UnknownArchitectureError
from wattdock.inputs.estimate.families import architecture
from wattdock.inputs.estimate.fit import needs
from wattdock.inputs.estimate.memory import weight_bytes
from wattdock.inputs.estimate.precision import Precision, bytes_of, precision
from wattdock.inputs.estimate.splits import check_split

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from wattdock.config import EngineMemory
    from wattdock.inputs.estimate.architecture import Architecture
    from wattdock.inputs.estimate.fit import Demand, Needs

# How a config calls what takes these: four bits for experts, eight for all matrices of layers.
MXFP4, EIGHT_BITS = "mxfp4", "fp8"


@dataclass(frozen=True)
class Sized:
    """A model and what its weights take.

    Attributes:
        dtype: Of weights that are not quantised, and of activations.
        weights: Bytes of all weights, on one GPU.
    """

    model: Architecture
    size: Precision
    dtype: str
    weights: float

    def needs(self, split: Split, engine: EngineMemory, demand: Demand) -> Needs:
        """Return what the fullest GPU of a split has to hold.

        Raises:
            ConfigError: The model cannot be split so.
        """
        check_split(self.model, split, repeats_kv_heads=engine.repeats_kv_heads)
        return needs(self.model, split, engine, self.size, demand)


def sized(config: Mapping[str, Any], *, file_bytes: int | None = None, dtype: str = "auto") -> Sized:
    """Return a model with the size of its weights.

    Args:
        config: Its config.json.
        file_bytes: Of its tensors on disk, which are what they are; None where there are none.
        dtype: "auto" is the checkpoint's own; one of eight bits is of the layers' matrices, as engines quantise them,
            and "mxfp4" of the experts'; another one is of unquantised weights.

    Raises:
        UnknownArchitectureError: The architecture, or how it is quantised, is not known.
        ConfigError: The type is not known.
    """
    model = architecture(config)
    own = model.dtype.removeprefix("torch.")
    method = MXFP4 if dtype == MXFP4 else EIGHT_BITS if dtype != "auto" and bytes_of(dtype) == 1 else None
    rest = own if dtype == "auto" or method else dtype
    quantised = {"quant_method": method} if method else model.quantization if dtype == "auto" else {}
    try:
        size = precision(rest, quantised)
    except UnknownArchitectureError:
        if file_bytes is None:
            raise
        each = file_bytes / model.parameters
        size = Precision(each, each, each, bytes_of(rest))
    counted = sum(weight_bytes(model, Split(), size))
    if file_bytes is None or dtype != "auto":
        return Sized(model, size, rest, counted)
    # What the files hold is exact; how a split divides it follows the architecture.
    return Sized(model, size.scaled(file_bytes / counted), rest, file_bytes)
