"""What a decoder-only model is made of: weights, keys and values, and arithmetic, from its config.json. Pure.

In: a config.json. Out: an `Architecture`, or an `UnknownArchitectureError` that names the model type.
Must not know: engines, hardware, results.
"""

from wattdock.inputs.architecture.families import MOST_LAYERS, architecture_of
from wattdock.inputs.architecture.model import BYTES, Architecture

__all__ = ["BYTES", "MOST_LAYERS", "Architecture", "architecture_of"]
