"""Settings of the PyTorch/transformers runner."""

from __future__ import annotations

from typing import Literal

from wattdock.config.placement import EngineMemory, Split
from wattdock.config.sections.base import BackendSection

# Per request and vocabulary entry: 16-bit logits, their float32 copy, and what processing them makes.
# Source: transformers, GenerationMixin._sample.
LOGIT_BYTES = 2 + 4 + 4


class Section(BackendSection):
    """`pytorch:` in an experiment.

    Attributes:
        dtype: "auto" is the checkpoint's own on a GPU and float32 on a CPU.
        device_map: "auto" lets accelerate spread the layers over the GPUs that `gpus` names.
        attn_implementation: As transformers calls them; None is transformers' own choice.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device_map: Literal["auto"] | None = None
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None

    def split(self, gpus: int) -> Split:
        """Return the layers' spread over all GPUs where accelerate places them."""
        return Split(pipeline=gpus, by_device_map=True) if self.device_map and gpus > 1 else Split()

    def memory(self) -> EngineMemory:
        """Return transformers' way: all prompts of a batch in one step, then a cache that grows with the answers."""
        return EngineMemory(logit_bytes=LOGIT_BYTES, keeps_repeated_heads=True, estimable=not self.moves_memory)
