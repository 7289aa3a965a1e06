"""inputs."""

from wattdock.inputs.estimate.against import AIM, Comparison, Line, compare, split_of
from wattdock.inputs.estimate.answer import Answer, Gpu, GpuAnswer, answer
from wattdock.inputs.estimate.architecture import UnknownArchitectureError
from wattdock.inputs.estimate.estimate import sized
from wattdock.inputs.estimate.experiment import WEIGHTS_ONLY, MemoryFit, memory_fit
from wattdock.inputs.estimate.fit import MARGIN, Demand, Smallest
from wattdock.inputs.estimate.flops import METHOD, Decoder, decoder, kv_bytes_read, request_flops
from wattdock.inputs.models.figures import figures_of, known_figures
from wattdock.inputs.models.folder import ModelFolder, check_folder, sampled_revision
from wattdock.inputs.models.resolve import check_model, resolve_model
from wattdock.inputs.models.shapes import Preset, presets
from wattdock.inputs.prompts import BUNDLED, SYNTHETIC, PromptSet, check_prompts, file_sha256, load_prompts, varied

__all__ = [
    "AIM",
    "BUNDLED",
    "MARGIN",
    "METHOD",
    "SYNTHETIC",
    "WEIGHTS_ONLY",
    "Answer",
    "Comparison",
    "Decoder",
    "Demand",
    "Gpu",
    "GpuAnswer",
    "Line",
    "MemoryFit",
    "ModelFolder",
    "Preset",
    "PromptSet",
    "Smallest",
    "UnknownArchitectureError",
    "answer",
    "check_folder",
    "check_model",
    "check_prompts",
    "compare",
    "decoder",
    "figures_of",
    "file_sha256",
    "known_figures",
    "kv_bytes_read",
    "load_prompts",
    "memory_fit",
    "presets",
    "request_flops",
    "resolve_model",
    "sampled_revision",
    "sized",
    "split_of",
    "varied",
]
