"""Turn what a person calls a model into a folder that a runner can load."""

from wattdock.inputs.models.folder import ModelFolder
from wattdock.inputs.models.resolve import check_model, resolve_model

__all__ = ["ModelFolder", "check_model", "resolve_model"]
