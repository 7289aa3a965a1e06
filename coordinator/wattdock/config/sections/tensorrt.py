"""Settings of the TensorRT-LLM runner."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import model_validator

from wattdock.config.lengths import Positive, Settings
from wattdock.config.sections import EngineMemory, TensorPipelineSection

# TensorRT-LLM's own default of max_num_tokens.
STEP_TOKENS = 8192
RENAMED = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size"}


class KvCacheSettings(Settings):
    """`tensorrt: {kv_cache_config: …}`; any other setting of TensorRT-LLM's KvCacheConfig may stand here too.

    Attributes:
        enable_block_reuse: Off unless set; where on, cached prompt tokens are counted per request.
        dtype: "auto" is the checkpoint's own, else for instance "fp8".
    """

    enable_block_reuse: bool = False
    dtype: str | None = None


class Section(TensorPipelineSection):
    """Experimental. `tensorrt:` in an experiment; any other argument of its LLM may stand here too, None is its choice.

    Attributes:
        dtype: "auto" is the checkpoint's own.
        tp_size: GPUs that each layer is split over.
        pp_size: Groups of GPUs that the layers are spread over.
        max_batch_size: Most requests served at a time; at least `workload.batch_size`.
        max_num_tokens: Most tokens computed in one step; without `enable_chunked_prefill` also of the longest prompt.
    """

    caveat: ClassVar = "tensorrt is experimental: its runner was only tried against a stand-in of TensorRT-LLM"
    arrivals: ClassVar = ("batch", "closed", "open", "single")
    needs_gpu: ClassVar = True
    context_setting: ClassVar = "max_seq_len"
    prefix_cache: ClassVar = "kv_cache_config: {enable_block_reuse: true}"

    tp_size: Positive = 1
    pp_size: Positive = 1
    max_batch_size: Positive | None = None
    max_num_tokens: Positive | None = None
    kv_cache_config: KvCacheSettings = KvCacheSettings()

    @model_validator(mode="before")
    @classmethod
    def _without_other_names(cls, settings: Any) -> Any:
        for other, name in RENAMED.items():
            if isinstance(settings, dict) and other in settings:
                raise ValueError(f"{other} is called {name} here")
        return settings

    @property
    def caches_prefixes(self) -> bool:
        """Whether the engine's prefix cache was switched on."""
        return self.kv_cache_config.enable_block_reuse

    def memory(self) -> EngineMemory | None:
        """Return what follows from the settings; the engine itself has not been measured."""
        if self.moves_memory:
            return None
        return EngineMemory(
            step_tokens=self.max_num_tokens or STEP_TOKENS,
            logits_rows=self.max_batch_size,
            kv_dtype=self.kv_cache_config.dtype or "auto",
            repeats_kv_heads=True,
            queues=True,
        )
