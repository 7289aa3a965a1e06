"""Settings of the PyTorch/transformers runner."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from wattdock.config.lengths import Positive
from wattdock.config.sections import EngineMemory, ReplicableSection, Split


class Section(ReplicableSection):
    """`pytorch:` in an experiment.

    Attributes:
        dtype: "auto" is the checkpoint's own on a GPU and float32 on a CPU.
        device_map: "auto" lets accelerate spread the layers over the GPUs that `gpus` names.
        tp_plan: "auto" splits every layer over ranks, one process and GPU each, by transformers' plan for the model.
        tp_size: How many ranks; None is one for each GPU that `gpus` names.
        attn_implementation: As transformers calls them; None is transformers' own choice.
    """

    arrivals: ClassVar = ("batch", "single")

    device_map: Literal["auto"] | None = None
    tp_plan: Literal["auto"] | None = None
    tp_size: Positive | None = None
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3"] | None = None

    @model_validator(mode="after")
    def _one_plan(self) -> Self:
        if self.tp_plan and self.device_map:
            raise ValueError("tp_plan and device_map exclude each other: each is a way to split the model")
        if self.tp_size not in (None, 1) and not self.tp_plan:
            raise ValueError(f"tp_size: {self.tp_size} needs tp_plan: auto")
        if self.tp_plan and self.tp_size == 1:
            raise ValueError("tp_plan: auto splits the model over at least 2 GPUs, not tp_size: 1")
        return self

    def split(self, gpus: int) -> Split:
        """Return split layers, whole replicas, or the layers' spread over all GPUs where accelerate places them."""
        if self.tp_plan:
            return Split(tensor=self.tp_size or max(2, gpus))
        if self.device_map and gpus > 1:
            return Split(pipeline=gpus, by_device_map=True)
        return Split(replicas=self.replicas)

    def memory(self) -> EngineMemory | None:
        """Return transformers' way: all prompts of a batch in one step, then a cache that grows with the answers."""
        return None if self.moves_memory else EngineMemory()
