"""Read a config.json of a stranger into an architecture, or say why it is unknown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wattdock.errors import UnknownArchitectureError
from wattdock.inputs.architecture.families import FAMILIES
from wattdock_proto.context import text_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.inputs.architecture.model import Architecture

# More layers than any model has, public models some hundred: engines make lists of them.
MOST_LAYERS = 1_000
# More parameters than any model has, public models some 10^12.
MOST_PARAMETERS = 10**15


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes, of a multimodal model that of its language model.

    Raises:
        UnknownArchitectureError: The model type is unknown, or has no windows where the config sets one, or
            config.json leaves out a figure or says an impossible one.
    """
    whole = text_config(config)
    # Only a null window means something.
    config = {key: value for key, value in whole.items() if value is not None or key == "sliding_window"}
    if (kind := str(config.get("model_type", ""))) not in FAMILIES:
        raise UnknownArchitectureError(f"model_type {kind!r} is not known here: no FLOPs, and no memory forecast")
    try:
        layers, layer_types = config.get("num_hidden_layers", config.get("n_layer", 0)), config.get("layer_types", ())
        if layers > MOST_LAYERS or len(layer_types) not in (0, layers):
            raise UnknownArchitectureError(f"config.json says {layers:,} layers and {len(layer_types):,} layer_types")
        model = FAMILIES[kind](config)
        sizes = (
            model.hidden,
            model.vocab,
            model.heads,
            model.kv_heads,
            model.key_size,
            model.value_size,
            model.mlp_width,
        )
        windows = (layer.window or 1 for layer in model.layers)
        is_possible = min(*sizes, *windows) > 0 and model.parameters <= MOST_PARAMETERS
    except KeyError as error:
        raise UnknownArchitectureError(f"config.json does not tell {error.args[0]}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UnknownArchitectureError(f"config.json says what cannot be: {error}") from error
    if not is_possible:
        raise UnknownArchitectureError("config.json says sizes that cannot be")
    return model
