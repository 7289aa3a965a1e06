"""What goes into an engine: models and prompts, where they come from, and their figures before a load.

In: the model and the prompts that an experiment names. Out: a `ModelFolder` that a runner can load, the `PromptSet` of
each pass; the model's `Architecture`, whose arithmetic the analysis counts, and whether it fits a GPU's memory.
Must not know: engines' internals, runners, results.
"""

from wattdock.inputs.estimate import Estimate, memory_fit
from wattdock.inputs.model_folder import ModelFolder
from wattdock.inputs.prompts import PromptSet, check_prompts, load_prompts
from wattdock.inputs.resolve import check_model, resolve_model
from wattdock.inputs.served import served_model
from wattdock.inputs.shapes import presets

__all__ = [
    "Estimate",
    "ModelFolder",
    "PromptSet",
    "check_model",
    "check_prompts",
    "load_prompts",
    "memory_fit",
    "presets",
    "resolve_model",
    "served_model",
]
